"""Command prefixes: which shell commands a person may allow for good by their first words, and which later commands
those words allow.

**Whatever is in doubt is not allowed, and is asked about.** A command counts only if all of it is plain words: a shell
then has nothing to expand, to quote, to redirect or to run besides. A prefix is refused if it would allow anything: the
words of an interpreter, or of a program that starts other programs.
"""

import re


def _named(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[A-Za-z0-9_./,:@%+=-]+", re.ASCII)
"""A word that every shell takes as it stands. No quotes, globs, tilde, braces, history, comments or escapes."""

_LONGEST = 1000  # characters of a prefix

INTERPRETERS = _named(
    """
    sh bash dash ash zsh ksh mksh fish csh tcsh rbash busybox toybox pwsh powershell cmd python pypy ipython
    perl ruby irb node nodejs deno bun php lua luajit tclsh wish expect guile racket julia rscript r java jshell
    scala groovy clojure elixir iex erl swift osascript awk gawk mawk nawk sed gsed ed ex vi vim nvim view emacs
    nano less more man gdb lldb dlv sqlite3 psql mysql mongosh redis-cli bc dc m4 tsx ts-node runghc runhaskell
    ghc ghci
    """
)
"""Programs that run whatever they are given."""

LAUNCHERS = _named(
    """
    env sudo doas su runuser pkexec xargs parallel find fd nohup nice ionice chrt taskset timeout time stdbuf
    setsid setpriv script watch strace ltrace perf valgrind exec eval source command builtin trap alias coproc
    enable hash chroot unshare nsenter bwrap firejail systemd-run at batch crontab flock tmux screen dtach ssh
    scp sftp rsync mosh telnet nc ncat socat entr direnv dotenv npx pnpx bunx uvx pipx tar gtar bsdtar zip cpio
    rpm dpkg start-stop-daemon run-parts ld.so ld-linux.so ld-linux-x86-64.so ld-linux-aarch64.so xdg-open open
    start wsl wine prlimit numactl catchsegv rbenv mise asdf compgen complete fc if while until for case function
    select then do else ssh-agent setarch linux32 linux64 i386 uname26 choom fakeroot fakechroot proot faketime
    xvfb-run dbus-run-session dbus-launch hyperfine coverage cmake ctest gcc g++ cc c++ clang clang++ tcc tini
    dumb-init gosu su-exec chpst cgexec aa-exec capsh runcon sg newgrp unbuffer rlwrap systemd-inhibit
    systemd-nspawn xterm watchexec nodemon concurrently cross-env qemu rr
    """
)
"""Programs and words of the shell that start other programs, which a prefix says nothing of."""

HARMS = _named(
    """
    rm rmdir unlink shred dd mkfs fdisk parted truncate mv cp ln install tee chmod chown chgrp chattr setfacl
    mount umount kill pkill killall shutdown reboot halt poweroff curl wget ftp mail sendmail useradd usermod
    passwd visudo iptables nft ip ifconfig uniq split csplit xxd patch unzip 7z
    """
)
"""Programs that can remove, overwrite or send anything, by the words that follow: each command is to be looked at."""

CHANGES = _named(
    """
    cd pushd popd export unset declare typeset readonly local set shopt ulimit umask bind read mapfile readarray
    printf getopts let unalias history
    """
)
"""Words of the shell that change what later commands mean."""

_PARTED = _named(
    """
    git hg svn jj npm pnpm yarn cargo go docker podman nerdctl kubectl helm pip pip3 uv poetry pdm hatch rye
    pipenv conda mamba make gmake just task rake bundle gradle gradlew mvn ant dotnet bazel nix brew apt apt-get dnf
    yum pacman snap systemctl service gh glab aws gcloud az terraform tofu ansible vagrant heroku fly tox nox
    pre-commit composer mix rustup nvm pyenv busctl dbus-send gem zig forkpoint
    """
)
"""Programs of many parts: which one is meant must stand in the prefix."""

_RUNS = frozenset({("uv", "run"), ("poetry", "run"), ("pdm", "run"), ("hatch", "run"), ("rye", "run")})
_RUNS |= {("bundle", "exec"), ("pipenv", "run"), ("conda", "run"), ("mamba", "run"), ("uv", "pip")}
"""Parts that start the program that follows: what that is must stand in the prefix, and be allowed itself."""

_WITHIN = frozenset({("npm", "run"), ("pnpm", "run"), ("yarn", "run"), ("cargo", "run"), ("nix", "run")})
"""Parts that run what the project names: its name must stand in the prefix."""

_ANYTHING = {
    "git": "bisect config difftool mergetool filter-branch rebase submodule credential daemon instaweb hook shell "
    "remote-ext",
    "npm": "exec x explore config set install i add update",
    "pnpm": "exec dlx config install i add update",
    "yarn": "exec dlx config node add",
    "cargo": "install add",
    "go": "run generate tool get install",
    "docker": "run exec compose buildx build container",
    "podman": "run exec compose build container unshare",
    "nerdctl": "run exec compose build container",
    "kubectl": "exec run debug apply cp proxy plugin",
    "helm": "install upgrade plugin",
    "pip": "install download wheel",
    "pip3": "install download wheel",
    "uv": "tool add",
    "poetry": "add",
    "pdm": "add",
    "rye": "add",
    "conda": "install create",
    "mamba": "install create",
    "nix": "shell develop",
    "brew": "install",
    "gem": "install exec",
    "composer": "require exec",
    "dotnet": "run exec add tool",
    "mix": "run",
    "zig": "run",
    "rustup": "run",
    "pyenv": "exec",
    "nvm": "exec run",
    "pre-commit": "try-repo",
    "gh": "alias api extension codespace",
    "forkpoint": "trust approve approvals run chat serve",
    "systemctl": "edit link",
    "terraform": "apply console",
    "ansible": "all",
    "apt": "install",
    "apt-get": "install",
    "dnf": "install",
    "yum": "install",
    "snap": "install",
}
_REFUSED_PARTS = frozenset((program, part) for program, parts in _ANYTHING.items() for part in parts.split())
"""Parts of programs that run whatever they are told, or that set what runs later. A package that is installed runs
what its maker wrote."""

_OPTIONS = _named(
    """
    exec exec-batch exec-path execdir ok okdir upload-pack receive-pack open-files-in-pager ext-diff extcmd
    textconv to-command checkpoint-action use-compress-program rsh rsync-path command eval config config-env
    init-command pager editor output output-directory file makefile require load-path plugin script-shell prefix
    shell web-browser template hook-command interpreter loader import-module wrapper target-directory directory
    include-dir manifest-path fplugin
    """
)
"""Long options that run a program, read one from elsewhere, or write to a file that they name."""

_OPTION_WORDS = _named(
    """
    exec toolexec vettool executable command cmd program config kubeconfig output out file script hook plugin pager
    editor shell shellescape wrapper bin options
    """
)
"""Words within the name of a longer option of the same kind, as in ``--compress-program``."""

_SHORT = {"git": "cCOoxu", "make": "fCIE", "gmake": "fCIE", "cargo": "ZC", "go": "C", "npm": "C", "pnpm": "C"}
_SHORT |= {"sort": "oT", "gradle": "Ib", "gradlew": "Ib", "mvn": "f", "docker": "H", "tcpdump": "wz"}
"""Short options of the same kind, by program."""

_PRINTS = frozenset({"grep", "egrep", "fgrep", "rg", "ag", "ls", "ps"})
"""Programs whose ``-o`` names no file that is written."""

_READERS = _PRINTS | _named("cat head tail wc echo stat file du diff cmp")
"""Programs that start none of the words that follow them: those are texts or files."""

_STARTERS = INTERPRETERS | LAUNCHERS
_REFUSED = _STARTERS | HARMS | CHANGES
_KNOWN = _REFUSED | _PARTED
_SCRIPTS = (".sh", ".py", ".pl", ".rb", ".js")


def plain_words(command: str) -> tuple[str, ...] | None:
    """The words of a command, if all of it is plain words; None if a shell could make anything else of it."""
    words = command.strip(" ").split(" ")
    found = tuple(word for word in words if word)
    if not found or not all(_WORD.fullmatch(word) for word in found):
        return None
    return None if "=" in found[0] else found  # an assignment in front


def why_refused(words: tuple[str, ...]) -> str | None:
    """Why a prefix would allow too much; None if it may be given."""
    if not words or plain_words(" ".join(words)) != words:
        return "it must be plain words, without quotes, wildcards, assignments or anything else that a shell interprets"
    if len(" ".join(words)) > _LONGEST:
        return f"it has more than {_LONGEST:,} characters"
    program = _program(words[0])
    if not program or program == "." or words[0].startswith("-"):
        return f"{words[0]} names no program"
    if program in INTERPRETERS:
        return f"{words[0]} runs whatever it is given, so it would allow anything"
    if program in LAUNCHERS:
        return f"{words[0]} starts other programs, so it would allow anything"
    if program in HARMS:
        return f"{words[0]} can change or remove anything; approve its calls one by one"
    if program in CHANGES:
        return f"{words[0]} changes what later commands mean; approve its calls one by one"
    if program not in _PARTED:
        return _why_doubtful(program, words[1:])
    if len(words) < 2 or words[1].startswith("-") or "=" in words[1]:
        return f"{words[0]} does many things; the prefix must say which one, directly after {words[0]}"
    part = (program, words[1])
    if part in _REFUSED_PARTS:
        return f"{words[0]} {words[1]} runs whatever it is told, so it would allow anything"
    if part in _RUNS:
        unnamed = f"{words[0]} {words[1]} starts other programs; the prefix must say which"
        return why_refused(words[2:]) if len(words) > 2 else unnamed
    if part not in _WITHIN:
        return _why_doubtful(program, words[2:])
    if len(words) < 3 or words[2].startswith("-"):
        return f"{words[0]} {words[1]} runs what the project names; the prefix must say which"
    return _why_doubtful(program, words[3:])


def allows(prefix: tuple[str, ...], command: str) -> bool:
    """Whether a prefix allows a command: its first words are the prefix, and none of the others is in doubt."""
    words = plain_words(command)
    if words is None or not prefix or words[: len(prefix)] != prefix:
        return False
    first = _program(prefix[0])
    programs = {first} if first in _READERS else {_program(word) for word in prefix}  # one may start another
    further = words[len(prefix) :]
    if any(_is_assignment(word) for word in further):
        return False
    return all(_why_doubtful(program, further) is None for program in programs)


def proposed(command: str) -> tuple[str, ...]:
    """The shortest sensible prefix of a command: the program, with its part if it has parts. May be empty."""
    words = plain_words(command) or ()
    for length in range(1, len(words) + 1):
        if why_refused(words[:length]) is None:
            return words[:length]
    return ()


def _program(word: str) -> str:
    """The name of a program, whatever its folder, version, case or ending: python3.12 is python, vim.tiny is vim.

    A script keeps its ending: env.py is a program of its own.
    """
    name = _bare(word)
    begins = re.split(r"[-.0-9]", name, maxsplit=1)[0]
    is_own = name in _KNOWN or name.endswith(_SCRIPTS)
    return begins if not is_own and begins in _REFUSED else name


def _bare(word: str) -> str:
    """A name without its folder, version, case and ending. What follows a dot stays: env.py is a file, and not env."""
    name = word.rsplit("/", 1)[-1].lower()
    name = name.removesuffix(".exe")
    return name if name in _KNOWN else re.sub(r"[-.]?[0-9][0-9.]*$", "", name)


def _why_doubtful(program: str, words: tuple[str, ...]) -> str | None:
    """Why words that follow a program could make it run anything; None if they are not in doubt.

    A program that is not known here may start what it is given, as sudo does. So the name of an interpreter or a
    launcher is in doubt behind every program, unless it is known to start nothing.
    """
    for word in words:
        if _is_option(program, word):
            return f"the option {word} could run or overwrite anything"
        if program not in _READERS and _is_starter(word.split("=", 1)[-1]):
            return f"{program} may start {word}, which runs whatever it is given"
    return None


def _is_starter(word: str) -> bool:
    """Whether a word behind a program names what starts other programs: bash, bash-static, x86_64-linux-gnu-gcc."""
    name = _bare(word)
    parts = name.split("-")
    return name in _STARTERS or ("." not in name and not _STARTERS.isdisjoint((parts[0], parts[-1])))


def _is_option(program: str, word: str) -> bool:
    """Whether a word is an option in doubt. Programs take a long option by its beginning, so beginnings count too."""
    name = word.lstrip("-").split("=", 1)[0].lower()
    if not word.startswith("-") or not name:
        return False
    if name in _OPTIONS or (len(name) > 1 and not _OPTION_WORDS.isdisjoint(re.split(r"[-_]", name))):
        return True
    if word.startswith("--"):
        return any(option.startswith(name) for option in _OPTIONS)
    is_output = name.startswith("o") and program not in _PRINTS
    return is_output or any(letter in _SHORT.get(program, "") for letter in word[1:])


def _is_assignment(word: str) -> bool:
    return "=" in word and not word.startswith("-")
