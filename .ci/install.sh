# Sourced by .ci/demo and .ci/test: what a fresh machine may lack, and where things are kept.
# Each `ensure_*` does nothing where the thing is there already, and says what it does otherwise.

cache="${XDG_CACHE_HOME:-$HOME/.cache}/octavo"

say() { printf '» %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

case "$(uname -s)" in
    Linux) system=linux ;;
    Darwin) system=macos ;;
    *) system=windows ;;
esac

# Old Vulkan drivers complain on stderr without it, though they never use it.
if [ "$system" = linux ]; then export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/tmp}"; fi

# Runs a command as root: directly, or through a sudo that asks nothing.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    [ "$system" = linux ] && command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# install PACKAGE...: 1 where it cannot be done, after saying so.
install() {
    if ! can_install; then
        say "cannot install $* here (that takes apt and root); install it yourself if what follows needs it"
        return 1
    fi
    say "installing $*"
    refresh_lists
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Package lists, once for each run. An outdated list is better than none.
refresh_lists() {
    if [ -z "${lists_are_fresh:-}" ]; then
        as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
        lists_are_fresh=yes
    fi
}

ensure_rust() {
    command -v cargo >/dev/null || fail "cargo was not found; install Rust from https://rustup.rs and try again"
    # Rust links with the system's C compiler, and one dependency compiles some C.
    if [ "$system" = linux ] && ! command -v cc >/dev/null; then install gcc libc6-dev || true; fi
}

# The description files of installed Vulkan drivers whose names match $1.
drivers() {
    local folder
    for folder in "${XDG_DATA_HOME:-$HOME/.local/share}" /usr/local/share /usr/share /etc /usr/local/etc; do
        find "$folder/vulkan/icd.d" -name "$1" 2>/dev/null || true
    done
}

has_vulkan_loader() {
    [ -n "$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -F libvulkan.so.1)" ]
}

# Something to run on: a driver of the machine's GPU, or else Mesa's software driver.
ensure_vulkan() {
    [ "$system" = linux ] || return 0
    if has_vulkan_loader && [ -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-$(drivers '*.json')}}" ]; then return 0; fi
    install_lavapipe
}

install_lavapipe() { install libvulkan1 mesa-vulkan-drivers; }

# Prints the description file of Mesa's software driver.
lavapipe() { drivers 'lvp_icd*.json' | head -n 1; }

ensure_lavapipe() {
    if has_vulkan_loader && [ -n "$(lavapipe)" ]; then return 0; fi
    install_lavapipe
}

# Prints the description file of SwiftShader, a second software driver: smaller limits, no f16, subgroups of 4.
# Browsers bring it along; where there is none, Debian's package is unpacked beside the cached models.
swiftshader() {
    local folder
    for folder in "$cache/swiftshader" /usr/lib/chromium /opt/google/chrome; do
        if [ -f "$folder/libvk_swiftshader.so" ] && [ -f "$folder/vk_swiftshader_icd.json" ]; then
            printf '%s\n' "$folder/vk_swiftshader_icd.json"
            return 0
        fi
    done
}

ensure_swiftshader() {
    [ -z "$(swiftshader)" ] || return 0
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        say "SwiftShader is not here, and without apt it cannot be fetched"
        return 1
    fi
    if can_install; then refresh_lists; fi
    say "fetching SwiftShader"
    local folder
    folder="$(mktemp -d)"
    if (cd "$folder" && apt-get download -qq chromium-common && dpkg-deb -x chromium-common_*.deb unpacked) \
        >/dev/null 2>&1; then
        mkdir -p "$cache/swiftshader"
        cp "$folder"/unpacked/usr/lib/chromium/{libvk_swiftshader.so,vk_swiftshader_icd.json} "$cache/swiftshader/"
    else
        say "apt-get download chromium-common failed"
    fi
    rm -rf "$folder"
    [ -n "$(swiftshader)" ]
}

# The reference validator of shader code, which the translation tests use where it is there.
ensure_spirv_tools() {
    command -v spirv-val >/dev/null || install spirv-tools
}
