"""The rules, the alerts and the dashboard against a live server: monitoring_test.py SERVER CLIENT FOLDER.

FOLDER holds prometheus and promtool (get_prometheus.sh). Checks that promtool takes the rules and that its unit tests
pass; that every name in the rules, the alerts and the dashboard is in a scrape of a server under load, and that every
expression of the dashboard gives what it should in a real Prometheus server that scrapes it meanwhile.
"""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[2]
RULES = TOP / "deploy/prometheus"
DASHBOARD = TOP / "deploy/grafana/flashbob.json"

# Expressions that have no result on a healthy server of this test: it has no TLS.
MAY_BE_EMPTY = {"Certificate expires in"}


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, seconds, condition):
    until = time.monotonic() + seconds
    while True:
        try:
            result = condition()
            if result:
                return result
            error = "not yet"
        except OSError as reason:
            error = reason
        if time.monotonic() > until:
            raise SystemExit(f"{what}: {error} after {seconds} s")
        time.sleep(0.1)


def scraped_names(page):
    return {re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)[0] for line in page.splitlines() if line and line[0] != "#"}


def names_in(expression):
    """Metric names in PromQL: what is no string, label or function."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return {name for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare) if "flashbob_" in name}


def recorded_names(text):
    return set(re.findall(r"^ *- record: (\S+)$", text, re.MULTILINE))


def panels():
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_promtool(promtool):
    subprocess.run([promtool, "check", "rules", RULES / "rules.yml", RULES / "alerts.yml"], check=True)
    subprocess.run([promtool, "check", "config", RULES / "prometheus.yml"], check=True)
    subprocess.run([promtool, "test", "rules", RULES / "alerts_test.yml"], check=True)
    alerts = set(re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()))
    tested = set(re.findall(r"alertname: (\w+)", (RULES / "alerts_test.yml").read_text()))
    assert alerts == tested, f"alerts without a unit test: {alerts - tested}"


def check_names(page):
    rules = (RULES / "rules.yml").read_text()
    known = scraped_names(page) | recorded_names(rules)
    texts = {"rules.yml": rules, "alerts.yml": (RULES / "alerts.yml").read_text()}
    for panel in panels():
        texts[f"dashboard, {panel['title']}"] = " ".join(target["expr"] for target in panel["targets"])
    used = set()
    for where, text in texts.items():
        names = {name for name in names_in(re.sub(r"summary: .*|- name: .*", "", text))}
        unknown = names - known
        assert not unknown, f"{where}: {sorted(unknown)} are in no scrape"
        used |= names
    base = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    missing = families - base
    assert not missing, f"in no rule, alert or panel: {sorted(missing)}"
    print(f"{len(families)} metrics are scraped; all are used, and {len(used)} names that are used exist")


def check_live(prometheus, metrics_port, scratch):
    port = free_port()
    config = (RULES / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:9464", f"127.0.0.1:{metrics_port}").replace(": 5s", ": 1s")
    (scratch / "prometheus.yml").write_text(config)
    for name in ("rules.yml", "alerts.yml"):
        (scratch / name).write_text((RULES / name).read_text())
    arguments = [f"--config.file={scratch}/prometheus.yml", f"--storage.tsdb.path={scratch}/data"]
    with open(scratch / "prometheus.log", "w") as log:
        process = subprocess.Popen([prometheus, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    base = f"http://127.0.0.1:{port}/api/v1"

    def query(expression):
        answer = json.loads(get(f"{base}/query?{urllib.parse.urlencode({'query': expression})}"))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    try:
        wait_for("prometheus", 60, lambda: get(f"http://127.0.0.1:{port}/-/ready"))
        wait_for("scrapes under load", 60, lambda: query("min_over_time(up[5s]) == 1 and count_over_time(up[5s]) >= 4"))
        wait_for("a rate", 60, lambda: query("instance:flashbob_requests:rate5m > 0"))
        for panel in panels():
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")
                if panel["title"] not in MAY_BE_EMPTY:
                    wait_for(f"panel {panel['title']}: {expression}", 30, lambda e=expression: query(e))
        firing = [alert["metric"]["alertname"] for alert in query('ALERTS{alertstate="firing"}')]
        assert not firing, f"a healthy server under load raises {firing}"
        for expression in (
            "sum(instance:flashbob_requests:rate5m)",
            "sum(flashbob_requests_total)",
            "instance_stage:flashbob_request_stage_seconds:p99_5m",
            "scrape_duration_seconds",
            "scrape_samples_scraped",
        ):
            for sample in query(expression):
                labels = {key: value for key, value in sample["metric"].items() if key == "stage"}
                print(f"{expression} {labels or ''} = {float(sample['value'][1]):.4g}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def main():
    server_program, client_program, folder = sys.argv[1:4]
    check_promtool(f"{folder}/promtool")
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        metrics_port = free_port()
        arguments = ["--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{metrics_port}"]
        arguments += ["--port-file", f"{scratch}/port", "--log-level", "error"]
        server = subprocess.Popen([server_program, *arguments])
        load = None
        try:
            port_file = scratch / "port"
            wait_for("the server", 60, port_file.exists)
            target = f"127.0.0.1:{port_file.read_text().strip()}"
            shape = ["--shape", "1,2,64,32", "--concurrency", "4", "--duration", "600"]
            load = subprocess.Popen([client_program, "bench", "--server", target, *shape], stdout=subprocess.DEVNULL)
            metrics = f"http://127.0.0.1:{metrics_port}"
            wait_for("the first request", 60, lambda: "flashbob_requests_total" in get(f"{metrics}/metrics"))
            check_names(get(f"{metrics}/metrics"))
            check_live(f"{folder}/prometheus", metrics_port, scratch)
            assert load.poll() is None, "the load ended early"
        finally:
            if load is not None:
                load.kill()
                load.wait()
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0


if __name__ == "__main__":
    main()
