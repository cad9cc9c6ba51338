<#
.SYNOPSIS
Installs flatout for the current user. It needs neither Python nor administrator rights.

.DESCRIPTION
Run it (also under the default policy) with

    powershell -ExecutionPolicy Bypass -File install.ps1

It creates only:
  %LOCALAPPDATA%\flatout\app   flatout in its own environment; uv and Python, if missing
  %LOCALAPPDATA%\flatout\bin   flatout.exe
  an entry in the user's Path  shown first, with a prompt
Running it again changes nothing; an interrupted install is resumed. `flatout self update` installs
a newer version, `flatout self remove` removes everything.

It honours pip.ini, PIP_*, UV_*, HTTPS_PROXY and SSL_CERT_FILE. FLATOUT_UV_MIRROR replaces
https://github.com/astral-sh/uv/releases/download.

.PARAMETER Yes
Answer yes to all prompts.
.PARAMETER Version
Version to install (default: the installed one, else the newest).
.PARAMETER From
Install from a wheel, a source archive or a source folder, not from the package index.
.PARAMETER Offline
Do not use the network: take dependencies from wheels next to From.
#>
# Written for the PowerShell 5.1 that comes with Windows 10 and 11.
[CmdletBinding()]
param(
    [switch]$Yes,
    [string]$Version = '',
    [string]$From = '',
    [switch]$Offline
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
# Its progress bar makes a download many times slower.
$ProgressPreference = 'SilentlyContinue'

# Checksums: https://github.com/astral-sh/uv/releases/tag/0.12.15
$UvVersion = '0.12.15'
$UvSums = @{
    'x86_64'  = '477bd99a84e34891f2bd4c9152ddeb74e971accccbc59c0f0301f11f08a32d46'
    'aarch64' = 'a37c8e96cb1260488c8510b64c848533a3a82a2fdf9e905de7c2700ceebf6437'
}
# The Python that most frameworks have builds for.
$PythonVersion = '3.12'

function Say([string]$Label, [string]$Text) {
    Write-Host ('{0,-10}{1}' -f $Label, $Text)
}

function Fail([string]$Problem, [string]$Because, [string]$Fix) {
    [Console]::Error.WriteLine("error: $Problem")
    if ($Because) { [Console]::Error.WriteLine("  because: $Because") }
    [Console]::Error.WriteLine("  fix: $Fix")
    # An exception, because `exit` would close the window if this script was pasted into it.
    throw 'flatout was not installed'
}

# Runs a program with its output on the screen. Returns the exit code; failure does not throw.
function Invoke-Program([string]$Program, [string[]]$Arguments) {
    $before = $ErrorActionPreference
    $ErrorActionPreference = 'Continue'
    try { & $Program @Arguments | Out-Host } finally { $ErrorActionPreference = $before }
    return $LASTEXITCODE
}

# Runs a program and returns its output; empty if it fails.
function Read-Program([string]$Program, [string[]]$Arguments) {
    $before = $ErrorActionPreference
    $ErrorActionPreference = 'Continue'
    try {
        $said = & $Program @Arguments 2>$null
        if ($LASTEXITCODE -ne 0) { return '' }
        return ("$said").Trim()
    } catch {
        return ''
    } finally {
        $ErrorActionPreference = $before
    }
}

function Test-Arguments {
    if ($Version -and $Version -notmatch '^[0-9A-Za-z.+!]+$') {
        Fail "-Version $Version is not a version." '' 'write it as in -Version 0.1.0'
    }
    if ($Version -and $From) {
        Fail '-Version cannot be combined with -From.' 'a file has its own version' 'remove one of them'
    }
    if ($Offline -and -not $From) {
        Fail '-Offline needs -From.' 'without a network flatout must be on this machine' `
            'run pip download flatout on another machine, then use -From with that wheel'
    }
    if ($From) {
        if (-not (Test-Path -LiteralPath $From)) {
            Fail "-From $From does not exist." '' 'name a wheel, an archive or a folder'
        }
        $script:From = (Resolve-Path -LiteralPath $From).ProviderPath
        $isFolder = Test-Path -LiteralPath $script:From -PathType Container
        if ($isFolder -and -not (Test-Path -LiteralPath (Join-Path $script:From 'pyproject.toml'))) {
            Fail "-From $From is not a source folder." 'it has no pyproject.toml' 'name another folder'
        }
        if (-not $isFolder -and $script:From -notmatch '\.(whl|tar\.gz)$') {
            Fail "-From $From is neither wheel nor source archive." '' 'name a .whl or .tar.gz'
        }
    }
}

function Get-Sum([string]$File) {
    if (-not (Test-Path -LiteralPath $File -PathType Leaf)) { return '' }
    return (Get-FileHash -LiteralPath $File -Algorithm SHA256).Hash.ToLowerInvariant()
}

# One install at a time; the system releases the file when this process ends.
function Open-Lock {
    try {
        return [IO.File]::Open((Join-Path $App 'lock'), 'OpenOrCreate', 'ReadWrite', 'None')
    } catch {
        Fail 'another process is installing flatout, or its folder is not writable.' `
            "$_" "wait for it, or check $App"
    }
}

function Read-Receipt([string]$Key) {
    $file = Join-Path $App 'receipt'
    if (-not (Test-Path -LiteralPath $file)) { return '' }
    foreach ($line in [IO.File]::ReadAllLines($file)) {
        if ($line.StartsWith("${Key}: ")) { return $line.Substring($Key.Length + 2) }
    }
    return ''
}

function Write-Receipt([hashtable]$Values) {
    $lines = foreach ($key in @('environment', 'installer', 'source', 'sha256', 'launcher', 'profile')) {
        "${key}: $($Values[$key])"
    }
    # Without the byte order mark that Windows PowerShell would write.
    [IO.File]::WriteAllLines((Join-Path $App 'receipt.part'), $lines)
    Move-Item -Force -LiteralPath (Join-Path $App 'receipt.part') (Join-Path $App 'receipt')
}

function Get-FlatoutVersion([string]$Environment) {
    $program = Join-Path $Environment 'Scripts\flatout.exe'
    if (-not $Environment -or -not (Test-Path -LiteralPath $program)) { return '' }
    return (Read-Program $program @('--version')) -replace '^flatout ', ''
}

function Test-Installed {
    $found = Get-FlatoutVersion (Read-Receipt 'environment')
    if (-not $found) { return $false }
    if ($From -and (Test-Path -LiteralPath $From -PathType Container)) {
        return ((Read-Receipt 'source') -eq $From) -and ((Get-SourceVersion $From) -eq $found)
    }
    if ($From) {
        $sum = Get-Sum $From
        return ($sum -and (Read-Receipt 'sha256') -eq $sum)
    }
    return (-not $Version) -or ($Version -eq $found)
}

# The version of a source folder; empty if it is not one.
function Get-SourceVersion([string]$Folder) {
    $file = Join-Path $Folder 'src\flatout\__init__.py'
    if (-not (Test-Path -LiteralPath $file -PathType Leaf)) { return '' }
    foreach ($line in [IO.File]::ReadAllLines($file)) {
        if ($line -match '^__version__ = "(.*)"') { return $Matches[1] }
    }
    return ''
}

# A script in a checkout installs that checkout by default.
function Use-Checkout {
    # A pasted script has no folder.
    if ($Version -or $From -or -not $PSScriptRoot) { return }
    if (Get-SourceVersion $PSScriptRoot) { $script:From = $PSScriptRoot }
}

# A regular Python. One in WindowsApps may be a stub that opens the Store.
function Find-Python {
    $ask = 'import sys; print(sys.executable if sys.version_info >= (3, 11) else "")'
    $candidates = @()
    foreach ($name in @('py', 'python', 'python3')) {
        $candidates += @(Get-Command $name -CommandType Application -ErrorAction SilentlyContinue |
            Where-Object { $_.Path -notlike '*\WindowsApps\*' } | ForEach-Object { $_.Path })
    }
    foreach ($candidate in $candidates) {
        $arguments = @('-c', $ask)
        if ((Split-Path -Leaf $candidate) -eq 'py.exe') { $arguments = @('-3') + $arguments }
        $found = Read-Program $candidate $arguments
        if ($found -and $found -notlike '*\WindowsApps\*') { return $found }
    }
    return ''
}

function Find-Uv {
    $found = @(Get-Command 'uv' -CommandType Application -ErrorAction SilentlyContinue)
    if ($found.Count -gt 0) { return $found[0].Path }
    $own = Join-Path $App 'uv\uv.exe'
    if ((Test-Path -LiteralPath $own) -and (Read-Program $own @('--version'))) { return $own }
    return ''
}

# Downloads the missing rest of a file; returns whether part of it existed.
function Receive-File([string]$Url, [string]$File) {
    $isContinued = (Test-Path -LiteralPath $File) -and (Get-Item -LiteralPath $File).Length -gt 0
    # By default Windows PowerShell offers only TLS versions that servers refuse.
    [Net.ServicePointManager]::SecurityProtocol =
        [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
    $curl = Join-Path $env:SystemRoot 'System32\curl.exe'
    if (-not (Test-Path -LiteralPath $curl)) {
        Invoke-WebRequest -UseBasicParsing -Uri $Url -OutFile $File
        return $false
    }
    $code = Invoke-Program $curl @(
        '-fsSL', '--retry', '3', '--connect-timeout', '20', '-C', '-', '-o', $File, $Url
    )
    # 33: the server has no ranges. 22: the file is already complete; the checksum decides.
    if ($code -ne 0 -and -not ($isContinued -and @(22, 33) -contains $code)) {
        throw "curl ended with $code"
    }
    return $isContinued
}

# A URL without its password.
function Hide-Password([string]$Text) {
    return $Text -replace '://[^/]*@', '://****@'
}

function Get-Uv {
    if ($Offline) {
        Fail 'no Python 3.11 or later here can create an environment.' `
            '-Offline forbids downloading one' 'install Python from python.org, then run this again'
    }
    $machine = 'x86_64'
    if ($env:PROCESSOR_ARCHITECTURE -eq 'ARM64' -or $env:PROCESSOR_ARCHITEW6432 -eq 'ARM64') {
        $machine = 'aarch64'
    }
    $base = 'https://github.com/astral-sh/uv/releases/download'
    if ($env:FLATOUT_UV_MIRROR) { $base = $env:FLATOUT_UV_MIRROR }
    $url = "$base/$UvVersion/uv-$machine-pc-windows-msvc.zip"
    $archive = Join-Path $App "uv-$UvVersion-$machine.zip"
    $shown = Hide-Password $url
    Say 'uv' "fetching $shown (18 MB)"
    if ((Get-Sum $archive) -ne $UvSums[$machine]) {
        try {
            # An interrupted download is resumed; if the partial file was wrong, it is downloaded again.
            $isContinued = Receive-File $url $archive
            if ($isContinued -and (Get-Sum $archive) -ne $UvSums[$machine]) {
                Remove-Item -Force -LiteralPath $archive
                $null = Receive-File $url $archive
            }
        } catch {
            Fail "could not download $shown." (Hide-Password "$_") `
                'check the network (HTTPS_PROXY, if you need one), then run this again to resume'
        }
    }
    $got = Get-Sum $archive
    if ($got -ne $UvSums[$machine]) {
        Remove-Item -Force -LiteralPath $archive
        Fail 'the download of uv is damaged or was changed.' `
            "SHA-256: expected $($UvSums[$machine]), got $got" `
            'run this again; if it happens again, ask your network administrator'
    }
    $new = Join-Path $App 'uv.new'
    if (Test-Path -LiteralPath $new) { Remove-Item -Recurse -Force -LiteralPath $new }
    Expand-Archive -LiteralPath $archive -DestinationPath $new
    $folder = Join-Path $App 'uv'
    if (Test-Path -LiteralPath $folder) { Remove-Item -Recurse -Force -LiteralPath $folder }
    Move-Item -LiteralPath $new $folder
    Remove-Item -Force -LiteralPath $archive
    return (Join-Path $folder 'uv.exe')
}

# One of pip's settings; its environment variable takes precedence.
function Get-PipSetting([string]$Name, [string]$Value) {
    if ($Value) { return $Value }
    $files = @($env:PIP_CONFIG_FILE)
    foreach ($folder in @($env:APPDATA, $env:USERPROFILE, $env:ProgramData)) {
        if ($folder) { $files += Join-Path $folder 'pip\pip.ini' }
    }
    foreach ($file in $files) {
        if (-not $file -or -not (Test-Path -LiteralPath $file -PathType Leaf)) { continue }
        foreach ($line in [IO.File]::ReadAllLines($file)) {
            if ($line -match "^\s*$Name\s*[=:]\s*(\S.*?)\s*$") { return $Matches[1] }
        }
    }
    return ''
}

# uv ignores pip's settings, but an index configured for pip is meant for both.
function Copy-PipSettings {
    if (-not ($env:UV_DEFAULT_INDEX -or $env:UV_INDEX_URL)) {
        $index = Get-PipSetting 'index-url' $env:PIP_INDEX_URL
        if ($index) { $env:UV_DEFAULT_INDEX = $index }
    }
    if (-not ($env:UV_INDEX -or $env:UV_EXTRA_INDEX_URL)) {
        $extra = Get-PipSetting 'extra-index-url' $env:PIP_EXTRA_INDEX_URL
        if ($extra) {
            $env:UV_INDEX = $extra
            $env:UV_INDEX_STRATEGY = 'unsafe-best-match'
        }
    }
    if (-not $env:UV_INSECURE_HOST) {
        $hosts = Get-PipSetting 'trusted-host' $env:PIP_TRUSTED_HOST
        if ($hosts) { $env:UV_INSECURE_HOST = $hosts }
    }
    if (-not $env:SSL_CERT_FILE) {
        $certificate = Get-PipSetting 'cert' $env:PIP_CERT
        if ($certificate -and (Test-Path -LiteralPath $certificate -PathType Leaf)) {
            $env:SSL_CERT_FILE = $certificate
        }
    }
    # Company certificates are in the system's store, which uv does not read by default.
    if (-not $env:UV_SYSTEM_CERTS) { $env:UV_SYSTEM_CERTS = '1' }
}

# Creates an environment under a new name: until the receipt names it, it is unused, and the next run
# removes it.
function New-Environment {
    foreach ($name in @('PYTHONPATH', 'PYTHONHOME', 'PIP_TARGET', 'PIP_PREFIX', 'VIRTUAL_ENV')) {
        if (Test-Path "env:$name") { Remove-Item "env:$name" }
    }
    $env:PIP_USER = '0'
    $env:PIP_DISABLE_PIP_VERSION_CHECK = '1'
    $env:PIP_NO_INPUT = '1'
    # Not needed afterwards, but an interrupted install resumes with these caches.
    if (-not $env:PIP_CACHE_DIR) { $env:PIP_CACHE_DIR = Join-Path $App 'cache' }
    if (-not $env:UV_CACHE_DIR) { $env:UV_CACHE_DIR = Join-Path $App 'cache' }
    $stamp = [DateTime]::UtcNow.ToString('yyyyMMddTHHmmss')
    $environment = Join-Path $App "environment-$stamp-$PID"
    $python = Find-Python
    if ($python) {
        Say 'python' $python
        if ((Invoke-Program $python @('-m', 'venv', $environment)) -eq 0) {
            return @{ Folder = $environment; Uv = '' }
        }
        Say 'python' 'it cannot create an environment, so uv does'
        if (Test-Path -LiteralPath $environment) {
            Remove-Item -Recurse -Force -LiteralPath $environment
        }
    } else {
        $python = $PythonVersion
        Say 'python' "no Python 3.11 or later here: uv fetches $python (30 MB)"
    }
    $uv = Find-Uv
    if (-not $uv) { $uv = Get-Uv }
    Copy-PipSettings
    # In flatout's folder, so that it is removed with flatout.
    $env:UV_PYTHON_INSTALL_DIR = Join-Path $App 'python'
    $arguments = @('venv', '--no-project', '--python', $python, $environment)
    if ($Offline) { $arguments += '--offline' }
    if ((Invoke-Program $uv $arguments) -ne 0) {
        Fail 'uv cannot create an environment.' 'see the lines above' `
            'check the network (HTTPS_PROXY, UV_PYTHON_INSTALL_MIRROR), then run this again'
    }
    return @{ Folder = $environment; Uv = $uv }
}

function Install-Flatout([hashtable]$Made) {
    $what = 'flatout'
    if ($Version) { $what = "flatout==$Version" }
    if ($From) { $what = $From }
    Say 'install' $what
    $python = Join-Path $Made.Folder 'Scripts\python.exe'
    if ($Made.Uv) {
        $program = $Made.Uv
        $arguments = @('pip', 'install', '--quiet', '--python', $python, $what)
    } else {
        $program = $python
        $arguments = @('-m', 'pip', 'install', '--quiet', $what)
    }
    if ($Offline) { $arguments += @('--no-index', '--find-links', (Split-Path -Parent $From)) }
    $code = Invoke-Program $program $arguments
    $found = ''
    if ($code -eq 0) { $found = Get-FlatoutVersion $Made.Folder }
    if (-not $found) {
        Remove-Item -Recurse -Force -LiteralPath $Made.Folder
        Fail 'cannot install flatout.' 'see the lines above' `
            'check the network (HTTPS_PROXY, pip.ini), then run this again'
    }
    return $found
}

# The program contains the path of its Python, so a copy works too.
function Copy-Launcher([string]$Environment) {
    $source = Join-Path $Environment 'Scripts\flatout.exe'
    $target = Join-Path $Bin 'flatout.exe'
    if ((Get-Sum $source) -eq (Get-Sum $target)) { return }
    if (Test-Path -LiteralPath $target) {
        # A running program can be renamed but not overwritten.
        Get-ChildItem -LiteralPath $Bin -Filter 'flatout.old-*' |
            Remove-Item -Force -ErrorAction SilentlyContinue
        Move-Item -LiteralPath $target (Join-Path $Bin "flatout.old-$PID")
    }
    Copy-Item -LiteralPath $source $target
}

function Remove-LeftOvers {
    $own = Read-Receipt 'environment'
    Get-ChildItem -LiteralPath $App -Filter 'environment-*' -Directory |
        Where-Object { $_.FullName -ne $own } |
        Remove-Item -Recurse -Force -ErrorAction SilentlyContinue
}

# Shows what is added to the user's Path, and asks. Read and written as it is stored: through .NET,
# %VARIABLES% in it would be replaced by what they are now.
function Add-ToPath {
    $key = Get-Item 'HKCU:\Environment'
    $path = [string]$key.GetValue('Path', '', 'DoNotExpandEnvironmentNames')
    $entries = @($path -split ';' | Where-Object { $_ })
    if ($entries -contains $Bin) { return }
    Say 'path' "$Bin is not on your Path; without it, type $Bin\flatout.exe"
    if (-not $Yes) {
        $answer = ''
        try { $answer = Read-Host 'Add it to your Path? [y/N]' } catch { $answer = '' }
        if ($answer -notmatch '^[Yy]') { return }
    }
    Set-ItemProperty 'HKCU:\Environment' -Name Path -Type ExpandString `
        -Value ((@($entries) + $Bin) -join ';')
    # Setting any variable notifies running programs; this variable does not exist.
    [Environment]::SetEnvironmentVariable('FLATOUT_NOTHING', $null, 'User')
    $env:Path = "$env:Path;$Bin"
    Say 'path' 'added; reopen other windows to use it'
}

function Install {
    Test-Arguments
    New-Item -ItemType Directory -Force -Path $App, $Bin | Out-Null
    $lock = Open-Lock
    try {
        Remove-LeftOvers
        if (Test-Installed) {
            $environment = Read-Receipt 'environment'
            Say 'flatout' "$(Get-FlatoutVersion $environment) is installed in $environment"
            if (-not ($Version -or $From)) { Say 'newer' 'flatout self update' }
        } else {
            Use-Checkout
            $made = New-Environment
            $environment = $made.Folder
            $found = Install-Flatout $made
            $installer = 'pip'
            if ($made.Uv) { $installer = 'uv' }
            $source = 'index'
            $sum = ''
            if ($From) { $source = $From; $sum = Get-Sum $From }
            # The receipt comes first: after an interruption between the two, the next run repairs it.
            Write-Receipt @{
                environment = $environment; installer = $installer; source = $source
                sha256 = $sum; launcher = (Join-Path $Bin 'flatout.exe'); profile = 'HKCU:\Environment'
            }
            Say 'flatout' "$found in $environment"
        }
        Copy-Launcher $environment
        Remove-LeftOvers
        $cache = Join-Path $App 'cache'
        if (Test-Path -LiteralPath $cache) {
            Remove-Item -Recurse -Force -LiteralPath $cache -ErrorAction SilentlyContinue
        }
    } finally {
        $lock.Dispose()
    }
    Add-ToPath
    Say 'remove' 'flatout self remove'
    Say 'begin' 'flatout'
}

if (-not $env:LOCALAPPDATA) {
    Fail 'this is not Windows, or LOCALAPPDATA is not set.' '' 'on Linux and macOS, run sh install.sh'
}
$App = Join-Path $env:LOCALAPPDATA 'flatout\app'
$Bin = Join-Path $env:LOCALAPPDATA 'flatout\bin'
Install
