#!/bin/sh
# Installs flatout for the current user. It needs neither Python nor root.
#
#   sh install.sh [--yes] [--version VERSION] [--from FILE] [--offline]
#
# It creates only:
#   ~/.local/share/flatout/app   flatout in its own environment; uv and Python, if missing
#   ~/.local/bin/flatout         a link to it
#   a marked block in the shell's profile, if that folder is not on PATH; shown first, with a prompt
# Running it again changes nothing; an interrupted install is resumed. `flatout self update` installs
# a newer version, `flatout self remove` removes everything.

set -eu

# Checksums: https://github.com/astral-sh/uv/releases/tag/0.12.15
uv_version=0.12.15
# The Python that most frameworks have builds for.
python_version=3.12

usage() {
    cat <<'TEXT'
usage: sh install.sh [--yes] [--version VERSION] [--from FILE] [--offline]

  --yes              answer yes to all prompts
  --version VERSION  version to install (default: the installed one, else the newest)
  --from FILE        install from a wheel, a source archive or a source folder, not from the index
  --offline          do not use the network: take dependencies from wheels next to FILE

It honours pip.conf, PIP_*, UV_*, HTTPS_PROXY and SSL_CERT_FILE. FLATOUT_UV_MIRROR replaces
https://github.com/astral-sh/uv/releases/download.
TEXT
}

say() {
    printf '%-10s%s\n' "$1" "$2"
}

# A URL without its password.
masked() {
    printf '%s' "$1" | sed 's,://[^/]*@,://****@,'
}

# fail PROBLEM BECAUSE FIX
fail() {
    printf 'error: %s\n' "$1" >&2
    [ -z "$2" ] || printf '  because: %s\n' "$2" >&2
    printf '  fix: %s\n' "$3" >&2
    exit 1
}

parse() {
    yes=no version='' from='' offline=no
    while [ $# -gt 0 ]; do
        case $1 in
            -y | --yes) yes=yes ;;
            --offline) offline=yes ;;
            --version | --from)
                [ $# -gt 1 ] || fail "$1 needs a value." '' "sh install.sh --help"
                if [ "$1" = --version ]; then version=$2; else from=$2; fi
                shift
                ;;
            -h | --help)
                usage
                exit 0
                ;;
            *) fail "install.sh has no option $1." '' "sh install.sh --help" ;;
        esac
        shift
    done
    case $version in
        *[!0-9A-Za-z.+!]*) fail "--version $version is not a version." '' "write it as in --version 0.1.0" ;;
    esac
    [ -z "$version" ] || [ -z "$from" ] ||
        fail "--version cannot be combined with --from." "a file has its own version" "remove one of them"
    [ $offline = no ] || [ -n "$from" ] ||
        fail "--offline needs --from." "without a network flatout must be on this machine" \
            "run pip download flatout on another machine, then use --from with that wheel"
    [ -z "$from" ] || check_source
}

# Makes the path absolute.
check_source() {
    [ -e "$from" ] || fail "--from $from does not exist." '' "name a wheel, an archive or a folder"
    if [ -d "$from" ]; then
        [ -f "$from/pyproject.toml" ] ||
            fail "--from $from is not a source folder." "it has no pyproject.toml" "name another folder"
        from=$(cd "$from" && pwd -P)
    else
        case $from in
            *.whl | *.tar.gz) ;;
            *) fail "--from $from is neither wheel nor source archive." '' "name a .whl or .tar.gz" ;;
        esac
        from=$(cd "$(dirname "$from")" && pwd -P)/$(basename "$from")
    fi
}

# The folders. The XDG specification says to ignore relative paths.
find_folders() {
    [ -n "${HOME:-}" ] && [ -d "$HOME" ] ||
        fail "no home folder." "HOME is ${HOME:-not set}" "set HOME to your home folder"
    case ${XDG_DATA_HOME:-} in
        /*) app=$XDG_DATA_HOME/flatout/app ;;
        *) app=$HOME/.local/share/flatout/app ;;
    esac
    case ${XDG_BIN_HOME:-} in
        /*) bin=$XDG_BIN_HOME ;;
        *) bin=$HOME/.local/bin ;;
    esac
    mkdir -p "$app" "$bin" 2>/dev/null ||
        fail "cannot write $app or $bin." "no permission, or no space" \
            "make them writable, or choose others: XDG_DATA_HOME, XDG_BIN_HOME"
}

# A process's start time: ids are reused, especially after a power cut.
began() {
    cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null || ps -o lstart= -p "$1" 2>/dev/null || true
}

# One install at a time. Only one process can create the folder, but it outlives that process, so it
# records its owner.
lock() {
    if ! mkdir "$app/lock" 2>/dev/null; then
        # The process that has just created it is about to write its id.
        [ -e "$app/lock/pid" ] || sleep 1
        owner=$(head -n 1 "$app/lock/pid" 2>/dev/null || echo 0)
        if [ "$owner" -gt 0 ] 2>/dev/null && kill -0 "$owner" 2>/dev/null &&
            [ "$(sed -n 2p "$app/lock/pid")" = "$(began "$owner")" ]; then
            fail "another process is installing flatout." "its process id is $owner" \
                "wait for it, or end it"
        fi
    fi
    # Written under another name first, so that no process reads half of it.
    { echo $$ && began $$; } >"$app/lock/pid.$$" && mv -f "$app/lock/pid.$$" "$app/lock/pid" ||
        fail "cannot write $app." "no permission, or no space" "free some space"
    trap 'rm -rf "$app/lock"' EXIT
    trap 'exit 130' INT TERM HUP
}

# One line of the receipt: `key: value`. Values hold no newline, since paths with one are refused.
receipt() {
    sed -n "s/^$1: //p" "$app/receipt" 2>/dev/null | head -n 1
}

refuse_odd_paths() {
    case "$app$bin$from" in
        *'
'*) fail "a path contains a newline." "$app, $bin" "choose another one" ;;
    esac
}

refuse_other_launcher() {
    if [ -e "$bin/flatout" ] || [ -L "$bin/flatout" ]; then
        case $(readlink "$bin/flatout" 2>/dev/null || true) in
            "$app"/*) ;;
            *) fail "$bin contains another flatout." "it was not installed by install.sh" \
                "remove it first: uv tool uninstall flatout, pipx uninstall flatout, or rm" ;;
        esac
    fi
}

# Whether the requested version is installed and works.
is_installed() {
    environment=$(receipt environment)
    [ -n "$environment" ] && [ -x "$environment/bin/flatout" ] || return 1
    found=$("$environment/bin/flatout" --version 2>/dev/null) || return 1
    found=${found#flatout }
    if [ -d "$from" ]; then
        [ "$(receipt source)" = "$from" ] && [ "$(version_of "$from")" = "$found" ]
    elif [ -n "$from" ]; then
        [ "$(receipt sha256)" = "$(sha256_of "$from")" ]
    else
        [ -z "$version" ] || [ "$version" = "$found" ]
    fi
}

# The version of a source folder.
version_of() {
    sed -n 's/^__version__ = "\(.*\)"/\1/p' "$1/src/flatout/__init__.py" 2>/dev/null
}

# A script in a checkout installs that checkout by default. A script from a pipe has no file: $0 is
# then the shell's name, and the current folder must not be trusted.
take_checkout() {
    [ -z "$version$from" ] || return 0
    case $0 in
        install.sh | */install.sh) [ -f "$0" ] || return 0 ;;
        *) return 0 ;;
    esac
    here=$(cd "$(dirname "$0")" 2>/dev/null && pwd -P) || return 0
    if [ -f "$here/install.sh" ] && [ -n "$(version_of "$here")" ]; then from=$here; fi
}

sha256_of() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif command -v openssl >/dev/null 2>&1; then
        openssl dgst -sha256 "$1" | sed 's/.*= *//'
    else
        echo unknown
    fi
}

# A Python that is new enough. Seen from WSL, a Python of Windows is another system's.
find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
        path=$(command -v "$name" 2>/dev/null) || continue
        case $path in
            /mnt/* | [!/]*) continue ;;
        esac
        if "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            python=$path
            return 0
        fi
    done
    return 1
}

find_uv() {
    uv=$(command -v uv 2>/dev/null) && return 0
    uv=$app/uv/uv
    [ -x "$uv" ] && "$uv" --version >/dev/null 2>&1
}

uv_target() {
    case $(uname -s)-$(uname -m) in
        Linux-x86_64 | Linux-amd64)
            target=x86_64-unknown-linux-musl
            sha256=999c0c3da986953e508985c3932d283d2c62eb167b4f8d81e79f565e34104959
            ;;
        Linux-aarch64 | Linux-arm64)
            target=aarch64-unknown-linux-musl
            sha256=93b801abb146e6431fb0434346a0162e65d3f0d1cd7360144d04c43488fd7f7d
            ;;
        Darwin-x86_64)
            target=x86_64-apple-darwin
            sha256=e9ca61775532368fe518ab03e7a354c7ecab8ccb3c7d941c775fcc4a362b801b
            ;;
        Darwin-arm64)
            target=aarch64-apple-darwin
            sha256=dc304b9ed1b24174572290fba60ac3f6fe63c73a671f0439e62a91375841964d
            ;;
        *) fail "uv is not available for $(uname -s) on $(uname -m)." "it would provide Python" \
            "install Python 3.11 or later, then run this again" ;;
    esac
}

fetch_uv() {
    [ $offline = no ] || fail "no Python 3.11 or later here can create an environment." \
        "--offline forbids downloading one" "install $instead, then run this again"
    uv_target
    base=${FLATOUT_UV_MIRROR:-https://github.com/astral-sh/uv/releases/download}
    url=$base/$uv_version/uv-$target.tar.gz
    part=$app/uv-$uv_version-$target.tar.gz.part
    say uv "fetching $(masked "$url") (22 MB)"
    if [ "$(sha256_of "$part" 2>/dev/null)" != "$sha256" ]; then
        # An interrupted download is resumed; if the partial file was wrong, it is downloaded again.
        download "$url" "$part"
        if [ "$(sha256_of "$part")" != "$sha256" ] && [ "$is_continued" = yes ]; then
            rm -f "$part"
            download "$url" "$part"
        fi
    fi
    got=$(sha256_of "$part")
    if [ "$got" = unknown ]; then
        fail "cannot verify the download." "there is no sha256sum, shasum or openssl" \
            "install one of them, or Python 3.11 or later"
    elif [ "$got" != "$sha256" ]; then
        rm -f "$part"
        fail "the download of uv is damaged or was changed." "SHA-256: expected $sha256, got $got" \
            "run this again; if it happens again, ask your network administrator"
    fi
    rm -rf "$app/uv.new"
    mkdir "$app/uv.new"
    tar -xzf "$part" -C "$app/uv.new" --strip-components=1 ||
        fail "cannot unpack $part." '' "install tar and gzip, and check the free disk space"
    rm -rf "$app/uv" "$app"/uv-*.part
    mv "$app/uv.new" "$app/uv"
    uv=$app/uv/uv
}

# download URL FILE: downloads the missing rest of the file.
download() {
    is_continued=no
    [ ! -s "$2" ] || is_continued=yes
    if command -v curl >/dev/null 2>&1; then
        # 33: the server has no ranges. 22: the file is already complete; the checksum decides.
        curl -fsSL --retry 3 --connect-timeout 20 -C - -o "$2" "$1" && return 0
        code=$?
        [ $is_continued = yes ] && { [ $code = 33 ] || [ $code = 22 ]; } && return 0
    elif command -v wget >/dev/null 2>&1; then
        wget -q -c -T 20 -O "$2" "$1" && return 0
    elif command -v python3 >/dev/null 2>&1; then
        python3 -c "$downloader" "$1" "$2" && return 0
    else
        fail "cannot download anything." "there is neither curl nor wget nor Python" \
            "install one of them, or $instead"
    fi
    fail "could not download $(masked "$1")." "see the lines above" \
        "check the network (HTTPS_PROXY, if you need one), then run this again to resume; or install $instead"
}

# A replacement for curl on systems without it, such as a minimal Debian with Python.
downloader='
import os, shutil, sys, urllib.error, urllib.request
url, path = sys.argv[1:]
start = os.path.getsize(path) if os.path.exists(path) else 0
headers = {"Range": "bytes=%d-" % start} if start else {}
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20)
    with answer, open(path, "ab" if getattr(answer, "status", 0) == 206 else "wb") as file:
        before = file.tell()
        shutil.copyfileobj(answer, file)
        if file.tell() - before < int(answer.headers.get("Content-Length") or 0):
            sys.exit("the connection has ended too early")
except urllib.error.HTTPError as error:
    if error.code != 416 or not start:
        sys.exit(str(error))
except OSError as error:
    sys.exit(str(error))
'

# Creates an environment under a new name, in its final place because it cannot be moved. Until the
# receipt names it, it is unused, and the next run removes it.
make_environment() {
    environment=$app/environment-$(date -u +%Y%m%dT%H%M%S)-$$
    unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX VIRTUAL_ENV
    export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
    # Not needed afterwards, but an interrupted install resumes with these caches.
    export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$app/cache}" UV_CACHE_DIR="${UV_CACHE_DIR:-$app/cache}"
    instead="Python 3.11 or later"
    if find_python; then
        say python "$python"
        if "$python" -m venv "$environment" >"$app/log" 2>&1; then
            installer=pip
            return
        fi
        if grep -q ensurepip "$app/log"; then
            instead="the missing package: apt install python3-venv"
            say python "it has no ensurepip, so uv creates the environment (or: apt install python3-venv)"
        else
            instead="a Python that can create an environment"
            say python "it cannot create an environment, so uv does: $(grep . "$app/log" | tail -n 1)"
        fi
        rm -rf "$environment"
    else
        python=$python_version
        say python "no Python 3.11 or later here: uv fetches $python (30 MB)"
    fi
    find_uv || fetch_uv
    follow_pip
    # In flatout's folder, so that it is removed with flatout.
    export UV_PYTHON_INSTALL_DIR="$app/python"
    set -- venv --no-project --python "$python" "$environment"
    [ $offline = no ] || set -- "$@" --offline
    "$uv" "$@" || fail "uv cannot create an environment." "see the lines above" \
        "check the network (HTTPS_PROXY, UV_PYTHON_INSTALL_MIRROR), then run this again"
    installer=uv
}

# pip_setting NAME VALUE: one of pip's settings; VALUE is that of its environment variable.
pip_setting() {
    if [ -n "$2" ]; then
        echo "$2"
        return
    fi
    for file in "${PIP_CONFIG_FILE:-}" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf" \
        "$HOME/.pip/pip.conf" /etc/pip.conf; do
        if [ -f "$file" ]; then sed -n "s/^ *$1 *[=:] *//p" "$file" | head -n 1; fi
    done | head -n 1
}

# uv ignores pip's settings, but an index configured for pip is meant for both.
follow_pip() {
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        UV_DEFAULT_INDEX=$(pip_setting index-url "${PIP_INDEX_URL:-}")
        [ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
    fi
    if [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then
        UV_INDEX=$(pip_setting extra-index-url "${PIP_EXTRA_INDEX_URL:-}")
        [ -z "$UV_INDEX" ] || export UV_INDEX UV_INDEX_STRATEGY=unsafe-best-match
    fi
    if [ -z "${UV_INSECURE_HOST:-}" ]; then
        UV_INSECURE_HOST=$(pip_setting trusted-host "${PIP_TRUSTED_HOST:-}")
        [ -z "$UV_INSECURE_HOST" ] || export UV_INSECURE_HOST
    fi
    if [ -z "${SSL_CERT_FILE:-}" ]; then
        SSL_CERT_FILE=$(pip_setting cert "${PIP_CERT:-}")
        [ ! -f "$SSL_CERT_FILE" ] || export SSL_CERT_FILE
    fi
    # Company certificates are in the system's store, which uv does not read by default.
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
}

install_flatout() {
    what=flatout
    [ -z "$version" ] || what=flatout==$version
    [ -z "$from" ] || what=$from
    say install "$what"
    if [ $installer = pip ]; then
        set -- "$environment/bin/python" -m pip install --quiet "$what"
    else
        set -- "$uv" pip install --quiet --python "$environment/bin/python" "$what"
    fi
    [ $offline = no ] || set -- "$@" --no-index --find-links "$(dirname "$from")"
    if ! "$@"; then
        rm -rf "$environment"
        fail "cannot install flatout." "see the lines above" \
            "check the network (HTTPS_PROXY, pip.conf), then run this again"
    fi
    found=$("$environment/bin/flatout" --version) || {
        rm -rf "$environment"
        fail "the installed flatout does not start." "see the lines above" "please report it"
    }
    found=${found#flatout }
}

# The receipt comes first: after an interruption between the two, the next run repairs it.
keep() {
    source=${from:-index}
    sum=''
    [ ! -f "$from" ] || sum=$(sha256_of "$from")
    {
        echo "environment: $environment"
        echo "installer: $installer"
        echo "source: $source"
        echo "sha256: $sum"
        echo "launcher: $bin/flatout"
        sed -n '/^profile: /p' "$app/receipt" 2>/dev/null || true
    } >"$app/receipt.part"
    mv "$app/receipt.part" "$app/receipt"
}

link() {
    if [ "$(readlink "$bin/flatout" 2>/dev/null || true)" != "$environment/bin/flatout" ]; then
        ln -s "$environment/bin/flatout" "$bin/.flatout-$$"
        mv -f "$bin/.flatout-$$" "$bin/flatout"
    fi
}

remove_left_overs() {
    for one in "$app"/environment-*; do
        if [ -d "$one" ] && [ "$one" != "$(receipt environment)" ]; then rm -rf "$one"; fi
    done
}

find_profile() {
    case ${SHELL:-} in
        */zsh) profile=${ZDOTDIR:-$HOME}/.zshrc ;;
        */fish) profile=${XDG_CONFIG_HOME:-$HOME/.config}/fish/conf.d/flatout.fish ;;
        */bash)
            profile=$HOME/.bashrc
            # On a Mac a terminal starts a login shell.
            [ "$(uname -s)" != Darwin ] || profile=$HOME/.bash_profile
            ;;
        *) profile=$HOME/.profile ;;
    esac
    quoted="'$(printf '%s' "$bin" | sed "s/'/'\\\\''/g")'"
    # shellcheck disable=SC2016  # The shell that reads the profile expands it.
    case $profile in
        *.fish) line="contains -- $quoted \$PATH; or set -gx PATH $quoted \$PATH" ;;
        *) line='case ":$PATH:" in *:'$quoted':*) ;; *) export PATH='$quoted':"$PATH" ;; esac' ;;
    esac
}

# ask QUESTION: from the terminal, since the script itself may be what is read from stdin.
ask() {
    [ $yes = no ] || return 0
    (: </dev/tty) 2>/dev/null || return 1
    printf '%s [y/N] ' "$1" >/dev/tty
    read -r answer </dev/tty || return 1
    case $answer in
        [Yy]*) return 0 ;;
    esac
    return 1
}

offer_path() {
    case :$PATH: in
        *:"$bin":*) return ;;
    esac
    find_profile
    if [ -f "$profile" ] && grep -q '^# >>> flatout >>>' "$profile"; then
        say path "$profile puts $bin on PATH in the next shell"
        return
    fi
    say path "$bin is not on PATH. This line in $profile would put it there:"
    printf '    %s\n' "$line"
    if ask "Add it?"; then
        mkdir -p "$(dirname "$profile")"
        # The receipt comes first: it may name a block that does not exist, but not the reverse.
        echo "profile: $profile" >>"$app/receipt"
        printf '\n# >>> flatout >>>\n%s\n# <<< flatout <<<\n' "$line" >>"$profile"
        say path "added; open a new shell, or run the line here"
    else
        say path "not added; run the line yourself, or use $bin/flatout"
    fi
}

main() {
    parse "$@"
    find_folders
    refuse_odd_paths
    refuse_other_launcher
    lock
    remove_left_overs
    if is_installed; then
        say flatout "$found is installed in $environment"
        [ -n "$version$from" ] || say newer "flatout self update"
    else
        take_checkout
        make_environment
        install_flatout
        keep
        say flatout "$found in $environment"
    fi
    link
    remove_left_overs
    rm -rf "$app/log" "$app/cache"
    offer_path
    say remove "flatout self remove"
    say begin "flatout"
}

# At the end, so that half a download does nothing.
main "$@"
