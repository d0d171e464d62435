# Completion of forkpoint for fish.
function __forkpoint_complete
    set -l before (commandline -opc)
    set -l word (commandline -ct)
    set -l reply (env _FORKPOINT_COMPLETE=words $before[1] $before[2..-1] "$word" 2>/dev/null)
    switch "$reply[1]"
        case files
            __fish_complete_path "$word"
        case folders
            __fish_complete_directories "$word"
        case '*'
            set -e reply[1]
            printf '%s\n' $reply
    end
end
complete -c forkpoint -f -a '(__forkpoint_complete)'
