"""A plan for WSL as a script for PowerShell, as single commands, and as a page for those who may.

The script is written for the PowerShell 5.1 that every Windows has, and may be run again at any
point: each part looks first whether it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import join

from flatout.nouns.plan import Edit, Plan, Run, Step
from flatout.nouns.shells import powershell_line
from flatout.setup.goals.wsl import VIRTUALIZATION, WslPlan

RUN_LINE = "powershell -ExecutionPolicy Bypass -File {}"

_HEAD = r"""# {goal}
#
# Written by `flatout setup --wsl`; read it before you run it:
#
#     powershell -ExecutionPolicy Bypass -File setup.ps1
#
# It changes: Windows' parts for WSL, one distro ({distro}), %USERPROFILE%\.wslconfig, and what is
# inside that distro. It asks before each, and may be run again: what is done is passed over.
# Where an administrator is needed, Windows asks. Take it back:
#     wsl --unregister {distro};  wsl --uninstall;  .wslconfig is kept as .wslconfig.before-flatout
param([switch]$Yes, [switch]$Resumed)
Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
# wsl.exe would print UTF-16, which no comparison finds anything in.
$env:WSL_UTF8 = '1'

function Ask([string]$Question) {{
    if ($Yes) {{ return $true }}
    return (Read-Host "$Question [y/N]") -match '^[Yy]'
}}

# A program as administrator; Windows asks. Returns its exit code.
function Start-Elevated([string]$Program, [string[]]$Arguments) {{
    try {{
        $process = Start-Process $Program -ArgumentList $Arguments -Verb RunAs -Wait -PassThru
        return $process.ExitCode
    }} catch {{
        Write-Host "   not as administrator: $_"
        Write-Host '   give request-for-it.md to whoever has the rights, then run this again'
        return 1
    }}
}}

function Test-Program([string]$Program, [string[]]$Arguments) {{
    $ErrorActionPreference = 'Continue'
    & $Program @Arguments *> $null
    return $LASTEXITCODE -eq 0
}}

# Sets or takes out one entry of an ini file; every other line stays as it is.
function Set-Entry([string[]]$Lines, [string]$Section, [string]$Key, $Value) {{
    $result = New-Object System.Collections.Generic.List[string]
    $isInside = $false
    $isDone = $false
    foreach ($line in $Lines) {{
        $text = $line.Trim()
        if ($text -match '^\[(.+)\]$') {{
            if ($isInside -and -not $isDone -and $null -ne $Value) {{
                $result.Add("$Key=$Value")
                $isDone = $true
            }}
            $isInside = $Matches[1] -eq $Section
        }} elseif ($isInside -and ($text -split '=', 2)[0].Trim() -eq $Key) {{
            if (-not $isDone -and $null -ne $Value) {{ $result.Add("$Key=$Value") }}
            $isDone = $true
            continue
        }}
        $result.Add($line)
    }}
    if (-not $isDone -and $null -ne $Value) {{
        if (-not $isInside) {{ $result.Add("[$Section]") }}
        $result.Add("$Key=$Value")
    }}
    return ,$result.ToArray()
}}

# After a restart of Windows this script goes on by itself, once.
function Register-GoingOn {{
    $line = "powershell -NoExit -ExecutionPolicy Bypass -File `"$PSCommandPath`" -Resumed"
    if ($Yes) {{ $line += ' -Yes' }}
    $key = 'HKCU:\Software\Microsoft\Windows\CurrentVersion\RunOnce'
    if (-not (Test-Path $key)) {{ New-Item $key | Out-Null }}
    Set-ItemProperty $key -Name 'flatout-setup' -Value $line
}}

# Asks for the restart that Windows' parts for WSL need, and ends this script.
function Exit-ForRestart {{
    if ($Resumed) {{
        Write-Host '   still not there after a restart; what is missing: wsl --status'
        exit 1
    }}
    Register-GoingOn
    Write-Host '   restart Windows; this script goes on when you have logged in again'
    if (Ask '   restart now?') {{ Restart-Computer }}
    exit 0
}}

# Whether WSL itself is installed. wsl.exe is not asked: without WSL, the one that comes with
# Windows offers to install it, and waits a minute for a key.
function Test-Wsl {{
    $folder = $env:ProgramW6432
    if (-not $folder) {{ $folder = $env:ProgramFiles }}
    return Test-Path -LiteralPath (Join-Path $folder 'WSL\wsl.exe')
}}

# Whether the Virtual Machine Platform is on and Windows has restarted since: then its services are
# there, which is what WSL looks for itself. `wsl --status` ends with 0 either way.
function Test-Platform {{
    $names = @('vmcompute', 'HNS')
    if ([Environment]::OSVersion.Version.Build -ge 22621) {{ $names += 'vfpext' }}
    foreach ($name in $names) {{
        if (-not (Test-Path "HKLM:\SYSTEM\CurrentControlSet\Services\$name")) {{ return $false }}
    }}
    return $true
}}

# With a restart pending, `wsl --install` installs no distribution and ends with 0; and with the
# exit code of its shell where it has opened one. The list tells.
function Test-Distribution {{
    $names = @(& wsl.exe --list --quiet | ForEach-Object {{ $_.Trim([char]0, ' ') }})
    return $names -contains '{distro}'
}}
"""

_VIRTUALIZATION = r"""
Write-Host '{number}. virtualization in the firmware'
$system = Get-CimInstance Win32_ComputerSystem
$processor = @(Get-CimInstance Win32_Processor)[0]
if (-not ($system.HypervisorPresent -or $processor.VirtualizationFirmwareEnabled)) {{
    Write-Host '   it is off. Restart into the firmware (BIOS, UEFI), switch on Intel VT-x or AMD-V'
    Write-Host '   (SVM), and run this again. An administrator may start it: shutdown /r /fw /t 0'
    exit 1
}}
"""

_DRIVER = r"""
Write-Host "{number}. NVIDIA's driver for Windows, {wanted}"
$smi = Join-Path $env:SystemRoot 'System32\nvidia-smi.exe'
$found = ''
# Without quotes a comma would make two arguments of one.
$asked = @('--query-gpu=driver_version', '--format=csv,noheader')
if (Test-Path $smi) {{ $found = "$(& $smi @asked)" }}
$major = 0
[void][int]::TryParse(($found.Trim() -split '\.')[0], [ref]$major)
if ({condition}) {{
    Write-Host "   found: $found. Install {wanted} from https://www.nvidia.com/drivers,"
    Write-Host '   then run this again. Nothing of NVIDIA is ever installed inside WSL.'
    exit 1
}}
"""

_WSL = r"""
Write-Host '{number}. WSL'
if (-not ((Test-Wsl) -and (Test-Platform))) {{
    if (-not (Ask '   install WSL? (administrator; then Windows must restart)')) {{ exit 1 }}
    $code = Start-Elevated 'wsl.exe' @('--install', '--no-distribution')
    if ($code -ne 0) {{ Write-Host "   wsl --install ended with $code"; exit 1 }}
    if (-not (Test-Platform)) {{ Exit-ForRestart }}
}}
# Not through a pipe, which would take their window from those that ask something.
& wsl.exe --update
& wsl.exe --set-default-version 2

Write-Host '{next}. {distro}'
if (-not (Test-Distribution)) {{
    if (-not (Ask '   install {distro}? (some 2 GB)')) {{ exit 1 }}
    Write-Host '   choose a name and a password, then type: exit'
    & wsl.exe --install --distribution {distro}
    if (-not (Test-Distribution)) {{
        Write-Host "   {distro} is not there; wsl --install ended with $LASTEXITCODE"
        if (-not (Test-Platform)) {{ Exit-ForRestart }}
        exit 1
    }}
}}
"""

_SETTINGS = r"""
Write-Host '{number}. .wslconfig'
$file = Join-Path $env:USERPROFILE '.wslconfig'
$before = @()
if (Test-Path -LiteralPath $file) {{ $before = [IO.File]::ReadAllLines($file) }}
$after = $before
{entries}
if (($after -join "`n") -ne ($before -join "`n")) {{
    Write-Host ('   ' + ($after -join "`n   "))
    if (Ask '   write this, and restart WSL? (ends what runs in it)') {{
        $kept = "$file.before-flatout"
        if ((Test-Path -LiteralPath $file) -and -not (Test-Path -LiteralPath $kept)) {{
            Copy-Item -LiteralPath $file $kept
        }}
        # Without a byte order mark, which WSL does not understand.
        [IO.File]::WriteAllLines($file, $after)
        & wsl.exe --list --running
        & wsl.exe --shutdown
    }}
}}
"""

_INSIDE = r"""
Write-Host '{number}. flatout inside WSL'
$inside = @('--distribution', '{distro}', '--cd', '~', '--')
if (-not (Test-Program 'wsl.exe' ($inside + @('sh', '-lc', 'command -v flatout')))) {{
    $script = Join-Path $PSScriptRoot 'install.sh'
    if (-not (Test-Path -LiteralPath $script)) {{
        Write-Host "   $script is missing: put flatout's install.sh beside this file"
        exit 1
    }}
    $path = "$(& wsl.exe @inside wslpath -u ($script -replace '\\', '/'))".Trim()
    & wsl.exe @inside sh $path --yes
    if ($LASTEXITCODE -ne 0) {{ exit $LASTEXITCODE }}
}}

Write-Host '{next}. {frameworks}, inside WSL'
$line = 'flatout setup {frameworks}'
if ($Yes) {{ $line += ' --yes' }}
& wsl.exe @inside sh -lc $line
exit $LASTEXITCODE
"""


def script_text(wanted: WslPlan) -> str:
    """The plan as a script, in ASCII with Windows' line ends."""
    parts = [_HEAD.format(goal=wanted.plan.goal, distro=wanted.distro)]
    number = 1
    parts.append(_VIRTUALIZATION.format(number=number))
    if wanted.driver_branch is not None:
        number += 1
        branch = wanted.driver_branch
        words = f"the newest of branch {branch}" if wanted.is_last_branch else f"{branch} or later"
        # Windows counts on within a branch, so that ten are left for it.
        is_wrong = f"$major -lt {wanted.driver_minimum}"
        if wanted.is_last_branch:
            is_wrong += f" -or $major -ge {branch + 10}"
        parts.append(_DRIVER.format(number=number, wanted=words, condition=is_wrong))
    parts.append(_WSL.format(number=number + 1, next=number + 2, distro=wanted.distro))
    number += 3
    if wanted.settings:
        parts.append(_SETTINGS.format(number=number, entries=_entries(wanted.settings)))
        number += 1
    frameworks = " ".join(wanted.frameworks)
    parts.append(
        _INSIDE.format(number=number, next=number + 1, distro=wanted.distro, frameworks=frameworks)
    )
    return "".join(parts).replace("\n", "\r\n")


def _entries(settings: dict[str, str | None]) -> str:
    lines = []
    for place, value in settings.items():
        section, _, key = place.partition(".")
        text = "$null" if value is None else f"'{value}'"
        lines.append(f"$after = Set-Entry $after '{section}' '{key}' {text}")
    return "\n".join(lines)


def commands(step: Step) -> tuple[str, ...]:
    """What to type for a step, where scripts are forbidden; an edit is told in words."""
    action = step.action
    if isinstance(action, Edit):
        return tuple(
            f"[{entry.place[0]}] {entry.place[1]}={entry.value}"
            if entry.value is not None
            else f"[{entry.place[0]}] without {entry.place[1]}"
            for entry in action.entries
        )
    if not isinstance(action, Run):
        return ()
    if step.where in ("windows", "powershell"):
        return (powershell_line(action.argv),)
    return (("sudo " if step.needs_root else "") + join(action.argv),)


_REQUEST = """# Request: GPU computing inside WSL on this PC

**What is asked for:** {goal}. WSL 2 is a part of Windows, supported by Microsoft; NVIDIA supports
CUDA in it. No port is opened in the firewall, and no driver is installed inside WSL.

**What needs an administrator**, once, in PowerShell:

```powershell
{administrator}
```

{driver}Then Windows restarts once. Virtualization (Intel VT-x, AMD-V) must be switched on in the
firmware; this tells whether it is (nothing printed means yes):

```powershell
{check}
```

**What the user does then, without rights.**

{user}

**Addresses** that are reached over HTTPS: `wsl.msft.com` and `www.microsoft.com` (WSL, the distro),
`archive.ubuntu.com`, `github.com` (uv and Python), PyPI and the host of its files,
`download.pytorch.org`. A proxy and a company's certificates are honoured.

**Policies** that would be in the way: "Allow the Windows Subsystem for Linux", "Allow WSL1",
"Allow custom .wslconfig" of the WSL templates for Intune, if they are set to disabled.

**Taking it back.** `wsl --unregister {distro}`, then `wsl --uninstall`.
"""


def request_text(wanted: WslPlan) -> str:
    """One page, in Markdown, for whoever has the rights that the person lacks."""
    steps = wanted.plan.steps
    administrator = [line for step in steps if _is_for_administrator(step)
                     for line in commands(step)]  # fmt: skip
    own = (step for step in steps if not step.needs_root and step.restarts != "windows")
    user = [f"- {step.text}" for step in own if step.safety != "safe"]
    driver = ""
    if wanted.driver_branch is not None:
        words = "the newest driver of branch" if wanted.is_last_branch else "driver"
        later = "" if wanted.is_last_branch else " or later"
        driver = (
            f"NVIDIA's {words} {wanted.driver_branch}{later} for Windows is needed "
            "(https://www.nvidia.com/drivers). "
        )
    return _REQUEST.format(
        goal=wanted.plan.goal,
        administrator="\n".join(administrator),
        driver=driver,
        check=VIRTUALIZATION.replace("exit 1", "'virtualization is off'"),
        user="\n".join(user),
        distro=wanted.distro,
    )


def _is_for_administrator(step: Step) -> bool:
    return step.needs_root and step.safety != "manual"


def plan_lines(plan: Plan) -> Sequence[str]:
    """A plan as plain text: numbered steps, what each changes, what to type."""
    lines = [plan.goal]
    if not plan.steps:
        lines.append("  nothing to do")
    for number, step in enumerate(plan.steps, 1):
        marks = [step.where if step.where != "here" else "", "root" if step.needs_root else "",
                 step.safety, f"restarts {step.restarts}" if step.restarts else ""]  # fmt: skip
        lines.append(f"{number}. {step.text}  ({', '.join(mark for mark in marks if mark)})")
        lines += [f"     {command}" for command in commands(step)]
        lines.append(f"     changes: {step.changes}")
    return lines
