"""Execute ``Containerfile`` in a clean Debian root, and try the image there, as it is and as in ``compose.yaml``.

``make container-check``, as root, with debootstrap and util-linux; no container engine is needed. Every step runs in
namespaces of its own, which end with their mounts and processes, and only a temporary folder is written. pip uses the
settings of this machine, and the local folders that they name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from string import Template

import yaml

ROOT = Path(__file__).parents[1]
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
VARIABLES = {"POSTGRES_PASSWORD": "password", "TAURANK_SECRET": "0123456789abcdef" * 4}

# PostgreSQL comes from Debian, in the version of the image that compose.yaml names
INSTALL = r"""
apt-get update -qq && apt-get install --yes -qq --no-install-recommends postgresql-15 > /dev/null
echo 127.0.0.1 database >> /etc/hosts
cd /tmp; echo $POSTGRES_PASSWORD > password
runuser -u postgres -- /usr/lib/postgresql/15/bin/initdb --pgdata data --username $POSTGRES_USER \
    --auth scram-sha-256 --pwfile password > /dev/null
"""
START = r"""
cd /tmp; runuser -u postgres -- /usr/lib/postgresql/15/bin/pg_ctl --pgdata data --options "-k /tmp" \
    --log data/log --wait start
psql --host database --username taurank --quiet --command "CREATE DATABASE taurank" postgres
"""
TRIAL = r"""
cd; printf 'user_id,item_id,treated,outcome\nann,tea,0,1\nann,jam,0,1\nbob,tea,0,1\neve,soap,0,1\n' > log.csv
taurank fit popular log.csv --out popular.model
taurank server init
taurank server surface set home -k 2 --holdout 0
taurank server model promote $(taurank server model upload popular.model)
export TOKEN=$(taurank server token create app | cut -f2)
"$@" &
python3 - <<'END'
import os, time
from taurank.serve.client import Client, Event

service, end = Client("http://127.0.0.1:8000", os.environ["TOKEN"], timeout=60), time.monotonic() + 120
while not (health := service.health()).ready and time.monotonic() < end:
    time.sleep(1)
print(health, service.recommend("ann"), service.report([Event("ann", "tea")]), sep="\n")
END
"""


def main() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    database, service = (_environment(services[name]) for name in ("database", "service"))
    with tempfile.TemporaryDirectory(prefix="taurank-container-") as folder:
        image = Image(Path(folder) / "root")
        image.execute((ROOT / "Containerfile").read_text(encoding="utf-8"))
        trial = shlex.join(["runuser", "-u", image.user, "--", "bash", "-ec", TRIAL, "trial", *image.command])
        home = f"/home/{image.user}"
        _say("the image as it is, with SQLite")
        image.run(trial, {"HOME": home}, lonely=True)
        _say("the service of compose.yaml, with PostgreSQL")
        image.run(INSTALL, database)
        image.run(START + trial, {"HOME": home, **service}, lonely=True)
    _say("container check passed")


class Image:
    """A Debian root, which the instructions of a container file fill."""

    def __init__(self, root: Path) -> None:
        self.root, self.user, self.folder, self.command = root, "root", "/", list[str]()
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        self.settings, self.shared = _pip()

    def execute(self, text: str) -> None:
        """Every instruction that ours has; any other is an error."""
        for line in re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines():
            kind, _, rest = line.partition(" ")
            _say(line)
            if kind == "FROM":
                (suite,) = re.fullmatch(r"debian:(\w+)-slim", rest).groups()  # type: ignore[union-attr]
                command = ["debootstrap", "--variant=minbase", suite, str(self.root), MIRROR]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                shutil.copy("/etc/resolv.conf", self.root / "etc")
            elif kind == "RUN":
                self.run(rest)
            elif kind == "COPY":
                *sources, target = shlex.split(rest)
                self.copy(sources, self.root / self.folder.lstrip("/") / target)
            elif kind == "ENV":
                self.environment |= dict(
                    pair.split("=", 1) for pair in shlex.split(Template(rest).substitute(self.environment))
                )
            elif kind == "WORKDIR":
                self.folder = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif kind == "USER":
                self.user = rest
            elif kind in ("ENTRYPOINT", "CMD"):
                self.command += json.loads(rest)
            elif kind not in ("VOLUME", "EXPOSE"):
                raise SystemExit(f"{kind} is not known here")

    def copy(self, sources: list[str], target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)

    def run(self, script: str, environment: Mapping[str, str] | None = None, lonely: bool = False) -> None:
        """A shell in the root; a lonely one has a network of its own, with nothing but the loopback interface."""
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount -t tmpfs tmpfs {self.root}/dev/shm"]
        for folder in self.shared:
            mounts += [
                f"mkdir -p {self.root}/host{folder}",
                f"mount --bind --options ro {folder} {self.root}/host{folder}",
            ]
        if lonely:
            mounts.append("ip link set lo up")
        values = self.environment | self.settings | dict(environment or {})
        inside = shlex.join(["bash", "-ec", f"cd {self.folder}; {script}"])
        given = shlex.join(f"{name}={value}" for name, value in values.items())
        spaces = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if lonely else [])]
        script = " && ".join([*mounts, f"exec chroot {self.root} env --ignore-environment {given} {inside}"])
        subprocess.run(
            ["unshare", *spaces, "bash", "-ec", script],
            check=True,
            stdout=None if lonely else subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )


def _environment(service: dict[str, dict[str, str]]) -> dict[str, str]:
    """The environment of a service, with our values for the variables."""
    variable = re.compile(r"\$\{(\w+):\?\}")
    return {
        name: variable.sub(lambda found: VARIABLES[found[1]], value) for name, value in service["environment"].items()
    }


def _pip() -> tuple[dict[str, str], list[str]]:
    """This machine's settings of pip as variables, and the folders they name, which lie below /host in the root."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings, shared = {}, set()
    for name, value in re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", listed.stdout, flags=re.M):
        for path in re.findall(r"(?<![\w/])/[\w./-]+", value.replace("file://", "")):
            folder = str(Path(path).resolve().parent)
            shared.add(folder)
            value = value.replace(path, f"/host{folder}/{Path(path).name}")
        settings[f"PIP_{name.upper().replace('-', '_')}"] = value
    inner = {folder for folder in shared if shared & set(map(str, Path(folder).parents))}
    return settings, sorted(shared - inner)


def _say(words: str) -> None:
    print(f"== {words}", flush=True)


if __name__ == "__main__":
    main()
