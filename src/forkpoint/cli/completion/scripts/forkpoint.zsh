#compdef forkpoint
# Completion of forkpoint for zsh.
_forkpoint() {
    local line
    local -a lines offered
    lines=("${(@f)$(_FORKPOINT_COMPLETE=words "${(Q)words[1]}" "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case ${lines[1]} in
        files | folders)
            [[ $PREFIX == --*=* ]] && compset -P '*='
            [[ ${lines[1]} == files ]] && _files || _files -/
            ;;
        *)
            for line in "${(@)lines[2,-1]}"; do
                offered+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
            done
            _describe -V forkpoint offered
            ;;
    esac
}
if [[ ${funcstack[1]} == _forkpoint ]]; then
    _forkpoint "$@"
else
    compdef _forkpoint forkpoint
fi
