# Completion of forkpoint for bash.
_forkpoint() {
    local line kind="" word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $kind ]]; then
            kind=$line
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <(_FORKPOINT_COMPLETE=line COMP_WORDBREAKS=$COMP_WORDBREAKS "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    # compopt is not there in bash 3.
    case $kind in
        files) compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "$word")) ;;
        folders) compopt -o dirnames 2>/dev/null || COMPREPLY=($(compgen -d -- "$word")) ;;
        *) [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null ;;
    esac
    return 0
}
complete -F _forkpoint forkpoint
