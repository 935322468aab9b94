"""Every port, path, flag, setting and metric that deploy/ names exists: in the programs' help, in the server's own
reading of the configurations, in a live scrape, in this repository.

    names_test.py PATH/TO/flashbob PATH/TO/flashbob-server
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
FLASHBOB, SERVER = (Path(argument).resolve() for argument in sys.argv[1:3])
GRPC_PORT, METRICS_PORT = 50051, 9464
WAIT_SECONDS = 120


def read(path: str) -> str:
    return (TOP / path).read_text()


def load(path: str) -> Any:
    return yaml.safe_load(read(path))


def help_of(*command: str | Path) -> str:
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def flags_in(help_text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", help_text))


def wait_for(condition: Any, what: str) -> Any:
    end = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return value


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of ours in Kubernetes' manifests and in compose.yaml, in one form."""
    pod = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    for container in pod["containers"]:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert all(mount["name"] in volumes for mount in container["volumeMounts"])
        yield "kubernetes", {"args": container["args"], "mounts": mounts}
    server = load("deploy/compose.yaml")["services"]["server"]
    mounts = [volume.split(":")[1] for volume in server["volumes"]] + [path.split(":")[0] for path in server["tmpfs"]]
    yield "compose", {"args": server["command"], "mounts": mounts}


def dockerfile(instruction: str) -> list[str]:
    """The words of the last such instruction in JSON form."""
    found = re.findall(rf"\b{instruction} (\[.*?\])$", read("Dockerfile"), re.M)
    return json.loads(found[-1])


def documented_commands(program: str) -> Iterator[list[str]]:
    """The calls of a program in deploy/'s pages and scripts, flags and all."""
    for path in [DEPLOY / "README.md", DEPLOY / "quickstart.sh"]:
        text = path.read_text().replace("\\\n", " ")
        for name, arguments in re.findall(r"(?:^|[\s/`])(flashbob|flashbob-server) ([^`|>&\n]*)", text):
            # The image is named like the client, and runs the server.
            runs = "flashbob-server" if arguments.lstrip().startswith("--") else name
            if runs == program and "--" in arguments:
                yield shlex.split(arguments, comments=True)


class Flags(unittest.TestCase):
    def test_flags_of_the_server_exist(self) -> None:
        known = flags_in(help_of(SERVER))
        calls = [container["args"] for _, container in containers()]
        calls += [dockerfile("CMD")]
        unit = read("deploy/systemd/flashbob-server.service")
        calls += [shlex.split(line)[1:] for line in re.findall(r"^ExecStart=(.*)$", unit, re.M)]
        calls += documented_commands("flashbob-server")
        self.assertGreaterEqual(len(calls), 5)
        for call in calls:
            used = {word.split("=")[0] for word in call if word.startswith("--")}
            self.assertTrue(used, call)
            self.assertLessEqual(used, known, call)

    def test_flags_of_the_client_exist(self) -> None:
        pod = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["spec"]
        calls = [
            container[probe]["exec"]["command"][1:]
            for container in pod["containers"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        ]
        calls += [json.loads(re.search(r"HEALTHCHECK .* CMD (\[.*\])$", read("Dockerfile"), re.M).group(1))[1:]]
        calls += documented_commands("flashbob")
        self.assertGreaterEqual(len(calls), 5)
        for call in calls:
            used = {word.split("=")[0] for word in call if word.startswith("--")}
            self.assertLessEqual(used, flags_in(help_of(FLASHBOB, call[0])), call)

    def test_settings_named_in_prose_exist(self) -> None:
        known = set(re.findall(r"^  optional \w+ (\w+) = ", read("server/config/config.proto"), re.M))
        known |= set(re.findall(r"^  (?:optional |repeated )?\w+ (\w+) = ", read("server/auth/tenants.proto"), re.M))
        named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)(?::[^`]*)?`", read("deploy/README.md")))
        named = {name for name in named if not name.startswith("flashbob_")}
        self.assertTrue(named)
        self.assertLessEqual(named, known)

    def test_environment_variables_exist(self) -> None:
        known = "".join(path.read_text() for path in [*(TOP / "client").rglob("*.cc"), *DEPLOY.glob("*.sh")])
        known += read("deploy/compose.yaml") + read("tests/deploy/image_test.sh")
        for path in DEPLOY.rglob("*"):
            if path.is_file() and path.suffix in (".md", ".yaml"):
                for name in re.findall(r"\bFLASHBOB_[A-Z_]+", path.read_text()):
                    self.assertIn(name, known, path)


class Ports(unittest.TestCase):
    def test_ports_are_those_that_are_listened_on(self) -> None:
        for path in DEPLOY.glob("*/server.textproto"):
            text = path.read_text()
            self.assertEqual(re.search(r'^listen: ".*:(\d+)"$', text, re.M).group(1), str(GRPC_PORT), path)
            self.assertEqual(re.search(r'^metrics_listen: ".*:(\d+)"$', text, re.M).group(1), str(METRICS_PORT), path)
        self.assertIn(f"127.0.0.1:{GRPC_PORT}]", help_of(SERVER))
        self.assertIn(f"127.0.0.1:{METRICS_PORT}]", help_of(SERVER))
        self.assertIn(f"EXPOSE {GRPC_PORT} {METRICS_PORT}\n", read("Dockerfile"))

        deployment = load("deploy/kubernetes/deployment.yaml")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        by_name = {port["name"]: port["containerPort"] for port in container["ports"]}
        self.assertEqual(by_name, {"grpc": GRPC_PORT, "metrics": METRICS_PORT})
        for port in load("deploy/kubernetes/service.yaml")["spec"]["ports"]:
            self.assertEqual(by_name[port["targetPort"]], port["port"])
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(METRICS_PORT))
        self.assertEqual(load("deploy/compose.yaml")["services"]["server"]["ports"], [f"{GRPC_PORT}:{GRPC_PORT}"])

    def test_every_port_written_anywhere_is_one_of_a_service(self) -> None:
        known = {GRPC_PORT, METRICS_PORT, 3000, 9090}  # Grafana's, Prometheus'
        for path in [*DEPLOY.rglob("*"), TOP / "Dockerfile"]:
            if not path.is_file() or path.suffix in (".json", ".png"):
                continue
            for port in re.findall(
                r"(?:localhost|\d\.\d|server|prometheus|gpu-node|flashbob):(\d{4,5})\b", path.read_text()
            ):
                self.assertIn(int(port), known, path)


class Paths(unittest.TestCase):
    def test_files_that_are_mounted_or_included_are_here(self) -> None:
        for service in load("deploy/compose.yaml")["services"].values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("./") and source != "./tls":  # made by compose_up.sh
                    self.assertTrue((DEPLOY / source).exists(), source)
        for rules in load("deploy/compose/prometheus.yml")["rule_files"]:
            self.assertTrue((DEPLOY / rules.replace("/etc/prometheus/flashbob", "prometheus")).is_file(), rules)
        home = load("deploy/compose.yaml")["services"]["grafana"]["environment"][
            "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
        ]
        self.assertTrue((DEPLOY / home.replace("/var/lib/grafana/dashboards", "grafana")).is_file(), home)
        kustomization = load("deploy/kubernetes/kustomization.yaml")
        for name in kustomization["resources"] + kustomization["configMapGenerator"][0]["files"]:
            self.assertTrue((DEPLOY / "kubernetes" / name).is_file(), name)
        for source in re.findall(r"^COPY ((?!--from)\S+) ", read("Dockerfile"), re.M):
            self.assertTrue((TOP / source).exists(), source)
            self.assertIn(f"\n!{source.split('/')[0]}", read(".dockerignore"))

    def test_paths_named_in_pages_and_comments_are_here(self) -> None:
        for path in [*DEPLOY.rglob("*"), TOP / "Dockerfile"]:
            if not path.is_file() or path.suffix in (".json", ".png"):
                continue
            for name in re.findall(r"(?<![\w./-])((?:deploy|server|tests|client|proto)/[\w./-]*\w)", path.read_text()):
                if not name.startswith("deploy/tls"):
                    self.assertTrue((TOP / name).exists(), f"{path} names {name}")
        for name in re.findall(r"\]\(([^)#:]+)\)", read("deploy/README.md")):
            self.assertTrue((DEPLOY / name).exists(), name)

    def test_configured_files_lie_where_something_is_mounted(self) -> None:
        for kind, container in containers():
            config = read(f"deploy/{kind}/server.textproto")
            paths = re.findall(r'"(/[^"]+)"', config) + [
                word.split("=", 1)[1] for word in container["args"] if word.startswith("--config=")
            ]
            self.assertGreaterEqual(len(paths), 4)
            for path in paths:
                self.assertTrue(any(path == at or path.startswith(at + "/") for at in container["mounts"]), path)
            health = f"unix:{re.search(r'^listen_unix: .(.*).$', config, re.M).group(1)}"
            self.assertIn(
                health, read("deploy/kubernetes/deployment.yaml" if kind == "kubernetes" else "deploy/compose.yaml")
            )


class Draining(unittest.TestCase):
    def test_who_stops_a_server_waits_longer_than_it_drains(self) -> None:
        def grace(kind: str) -> float:
            return float(re.search(r"^grace_seconds: (\d+)$", read(f"deploy/{kind}/server.textproto"), re.M).group(1))

        pod = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["spec"]
        name, pause = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(name, "sleep")
        self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], float(pause) + grace("kubernetes") + 5)
        stop = load("deploy/compose.yaml")["services"]["server"]["stop_grace_period"]
        self.assertGreaterEqual(float(stop.removesuffix("s")), grace("compose") + 5)
        stop = re.search(r"^TimeoutStopSec=(\d+)$", read("deploy/systemd/flashbob-server.service"), re.M).group(1)
        self.assertGreaterEqual(float(stop), grace("systemd") + 5)


class LiveServer(unittest.TestCase):
    """Servers on the very configurations, with their paths and ports moved to where this test may write and listen."""

    def serve(self, directory: Path, kind: str) -> int:
        """Runs a server until the test ends; gives its port of metrics."""
        config = read(f"deploy/{kind}/server.textproto")
        for place in ("/etc/flashbob", "/run/flashbob"):
            config = config.replace(place, str(directory))
        config = re.sub(r'^((?:metrics_)?listen): ".*:\d+"$', r'\1: "127.0.0.1:0"', config, flags=re.M)
        (directory / "server.textproto").write_text(config)
        subprocess.run([DEPLOY / "make_certificates.sh", directory / "tls"], check=True, stdout=subprocess.DEVNULL)
        for made, secret in {"server.pem": "tls.crt", "server.key": "tls.key"}.items():
            (directory / "tls" / secret).write_bytes((directory / "tls" / made).read_bytes())
        (directory / "tenants").mkdir(exist_ok=True)
        tenants = f'tenants {{ name: "research" token_sha256: "{"0" * 64}" }}\n'
        for path in ("tenants.textproto", "tenants/tenants.textproto"):
            (directory / path).write_text(tenants)
        command = [
            SERVER,
            "--config",
            directory / "server.textproto",
            "--devices",
            "cpu",
            "--host-memory-bytes",
            "64MiB",
        ]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def metrics_port() -> int | None:
            text = (directory / "log").read_text()
            self.assertIsNone(process.poll(), text)
            found = re.search(r'metrics_port["=:]+(\d+)', text)
            return int(found.group(1)) if found else None

        return int(wait_for(metrics_port, "the server does not serve"))

    def test_every_configuration_is_one_that_the_server_takes(self) -> None:
        for kind in ("compose", "kubernetes", "systemd"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as scratch:
                self.serve(Path(scratch), kind)
                socket = f"unix:{scratch}/flashbob.sock"
                health = subprocess.run([FLASHBOB, "health", "--server", socket], capture_output=True, text=True)
                self.assertEqual(health.stdout, "serving\n", health.stderr)

    def test_every_metric_named_is_exported(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            port = self.serve(Path(scratch), "compose")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as answer:
                exported = set(re.findall(r"^(flashbob_\w+)", answer.read().decode(), re.M))
        for path in DEPLOY.rglob("*"):
            if path.is_file() and path.suffix in (".md", ".yaml", ".yml", ".json"):
                # What a recording rule makes is named level:metric:operation.
                for name in re.findall(r"(?<![\w:/.-])flashbob_[a-z_]+\b(?!:)", path.read_text()):
                    self.assertIn(name, exported, path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
