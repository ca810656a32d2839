"""forebay dashboard export: the board, the alerts, their runbook and the provisioning files."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from support.cli import invoke

import forebay_proxy

FILES = Path(forebay_proxy.__file__).parent / "dashboard"


def test_without_a_directory_it_prints_the_board() -> None:
    """To be imported in Grafana."""
    assert json.loads(invoke("dashboard", "export").stdout)["uid"] == "forebay"


def test_a_directory_gets_every_file(tmp_path: Path) -> None:
    """As they are, but that Grafana is told of this directory and of your Prometheus, whatever their names need of quotes."""
    target = tmp_path / 'a: "b" # c'
    result = invoke("dashboard", "export", str(target), "--prometheus", "http://prom:9090/#x")
    written = [Path(line) for line in result.stdout.splitlines()]
    assert {path.relative_to(target) for path in written} == {path.relative_to(FILES) for path in FILES.rglob("*") if path.is_file()}
    same = [path for path in written if path.read_bytes() == (FILES / path.relative_to(target)).read_bytes()]
    assert {path.relative_to(target).parts[0] for path in written if path not in same} == {"provisioning"}
    [provider] = yaml.safe_load((target / "provisioning/dashboards/forebay.yaml").read_text("utf-8"))["providers"]
    assert provider["options"]["path"] == str(target)
    [source] = yaml.safe_load((target / "provisioning/datasources/forebay.yaml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prom:9090/#x"


def test_a_file_of_yours_is_replaced_only_when_you_say_so(tmp_path: Path) -> None:
    """Your own prometheus.yml, say. Nothing else is written either; what is the same already is no reason to refuse."""
    mine = tmp_path / "prometheus.yml"
    mine.write_text("mine", encoding="utf-8")
    result = invoke("dashboard", "export", str(tmp_path))
    assert result.exit_code == 2
    assert f"{mine} exists and differs" in result.stderr
    assert [*tmp_path.iterdir()] == [mine]
    assert invoke("dashboard", "export", str(tmp_path), "--force").exit_code == 0
    assert mine.read_bytes() == (FILES / "prometheus.yml").read_bytes()
    assert invoke("dashboard", "export", str(tmp_path)).exit_code == 0


def test_a_file_where_the_directory_should_be_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    """One line that names it."""
    (tmp_path / "provisioning").write_text("mine", encoding="utf-8")
    result = invoke("dashboard", "export", str(tmp_path))
    assert result.exit_code == 2
    assert str(tmp_path / "provisioning") in result.stderr
    assert (tmp_path / "provisioning").read_text("utf-8") == "mine"
