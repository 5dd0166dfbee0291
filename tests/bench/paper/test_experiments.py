"""All experiments of ``benchmarks/experiments`` are sound, and what is wrong is told in a line."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.paper import ab, command
from benchmarks.paper.cells import LEAST_BATCH, make_cells
from benchmarks.paper.command import MEASURES, build_parser, change, make_job
from benchmarks.paper.experiment import Grid, MeasureName, load_experiments
from benchmarks.peers.distdgl import PEERS
from hopper.bench.contender import Contender
from hopper.errors import RequestError

from .conftest import ignore

EXPERIMENTS = load_experiments()
GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "paper-experiments.md"
PAPERS = {"HopGNN": 18, "Heta": 13, "DistDGLv2": 7, "HiFuse": 4, "": 9}
"""how many experiments there are of each"""
SMALL = '[tiny]\ntitle = "A title"\n[tiny.grid]\ngraphs = ["arxiv-like"]\nmodels = ["gcn"]\n'

each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)


def parse(*words: str) -> Any:
    return build_parser().parse_args(words)


def check(name: str, folder: Path, *words: str) -> Any:
    """Make the job of an experiment, whose whole grid is checked thereby."""
    options = parse(name, "--out", str(folder / "out"), "--work", str(folder / "work"), *words)
    return make_job(EXPERIMENTS[name], options, (), ignore, ignore)


def test_every_figure_and_table_has_its_experiment():
    assert Counter(experiment.paper for experiment in EXPERIMENTS.values()) == PAPERS
    place = r"([Ss]ections?|Tables?|Figures?) \d"
    for experiment in EXPERIMENTS.values():
        prefix = experiment.paper.lower()
        assert experiment.name.startswith(f"{prefix}-" if prefix else "")
        assert bool(experiment.where) == bool(experiment.published) == bool(prefix)
        for where, what, value in experiment.published:
            assert re.match(place, where)
            assert re.match(place, experiment.where)
            assert what
            assert value


@each_experiment
def test_cells_and_sides_make_valid_configurations(experiment, tmp_path):
    cells = make_cells(experiment.grid)
    assert len({cell.name for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert re.fullmatch(r"[\w.-]+", cell.name)
        config = cell.config(Path("parts"), experiment.epochs, 4, ())
        assert config.model.layers == len(config.sampler.fanouts) == cell.layers
        assert cell.batch_size >= LEAST_BATCH
    if experiment.measure != "gpu":
        job = check(experiment.name, tmp_path, "--loopback")
        assert len(job.cells) == len(cells)


@each_experiment
def test_sides_and_comparisons_are_sound(experiment):
    assert len(set(experiment.sides.values())) == len(experiment.sides)
    assert bool(experiment.sides) != (
        experiment.measure in ("locality", "layer-epochs", "layer-operators", "layer-rates")
    )
    for baseline, sides in experiment.comparisons.items():
        assert baseline not in sides
    # What a clock measures is measured often enough for an interval.
    assert experiment.rounds >= 5 or not any("seconds" in name for name in experiment.report)
    for label in experiment.sides.values():
        if label not in PEERS:
            Contender.parse(label)


def test_every_measure_is_carried_out_and_used():
    assert set(MEASURES) == set(get_args(MeasureName))
    assert set(MEASURES) == {experiment.measure for experiment in EXPERIMENTS.values()}


def test_the_guide_names_every_experiment_with_its_place_in_the_paper():
    _, _, text = GUIDE.read_text().partition("## The experiments")
    lines = [line for line in text.partition("## Options")[0].splitlines() if line[:3] == "| `"]
    told = {}
    for line in lines:
        name, place, title = (part.strip() for part in line.strip("|").split("|"))
        told[name.strip("`")] = (place, title)
    assert told == {e.name: (e.where, e.title) for e in EXPERIMENTS.values()}


def test_the_list_names_every_experiment(capsys):
    assert command.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (SMALL + 'graph = ["x"]\n', r"own\.toml: tiny: grid\.graph: unknown key"),
        (SMALL.replace("title", "tilte"), r"own\.toml: tiny: title: Field required"),
        (SMALL + "hidden = 16\n", r"own\.toml: tiny: grid\.hidden: Input should be a valid tuple"),
        (SMALL.replace("[tiny.", "rounds = 0\n[tiny."), r"tiny: rounds: Input should be greater"),
        (SMALL.replace("[tiny.", 'measure = "x"\n[tiny.'), r"tiny: measure: Input should be 'ab'"),
        (SMALL.replace("[tiny.", 'sides = ["P3"]\n[tiny.'), r"tiny: sides: expected .*given 'P3'"),
        (SMALL.replace("[tiny.", 'like = "big"\n[tiny.'), r"tiny: like: no experiment 'big'"),
        (SMALL + '[tiny.sides]\na = "hop"\n[tiny.comparisons]\na = ["b"]\n', r"one of a; 'b'"),
        ("[tiny", r"own\.toml: .*"),
    ],
)
def test_a_wrong_file_is_refused_in_a_line(text, error, tmp_path):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(RequestError, match=error) as raised:
        load_experiments(tmp_path)
    assert "\n" not in str(raised.value)


def test_an_experiment_is_like_another_one_and_has_the_defaults(tmp_path):
    (tmp_path / "own.toml").write_text(
        '[defaults]\npaper = "A paper"\ndiffers = ["one"]\n[sides]\nX = "hop"\n'
        '[a]\ntitle = "A"\nsides = ["X"]\ndiffers = ["two"]\n'
        '[a.grid]\ngraphs = ["g"]\nhidden = [8]\nscales = { g = 0.5 }\n'
        '[b]\nlike = "a"\ntitle = "B"\n[b.grid]\nhidden = [4]\nscales = { h = 0.1 }\n'
    )
    first, second = load_experiments(tmp_path).values()
    assert (second.title, second.paper, second.sides) == ("B", "A paper", {"X": "hop"})
    assert first.differs == second.differs == ("one", "two")
    assert second.grid == Grid(graphs=("g",), hidden=(4,), scales={"g": 0.5, "h": 0.1})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["hopgnn-fig99"], "experiment: expected some of .*; given 'hopgnn-fig99'"),
        ([], "experiment: expected some of .*; given none"),
        (["hopgnn-fig11", "--scale", "2"], "--scale: expected more than 0 and at most 1, given 2"),
        (["hopgnn-fig11", "--sides", "x"], "--sides: hopgnn-fig11: expected some of .*given 'x'"),
        (["hopgnn-fig11", "--rounds", "0"], "--rounds: expected at least 1, given 0"),
        (["hopgnn-fig11", "--hidden", "x"], "--hidden: expected positive numbers"),
        (["hopgnn-fig11", "--graphs", "uk"], "preset: expected one of .*, given 'uk'"),
        (["hopgnn-fig11", "--graphs", "./no"], "--graphs: ./no: expected a preset or a graph"),
        (["hopgnn-fig11", "--link-rate", "fast"], "--link-rate: expected"),
        (["hopgnn-fig23b", "--emulate", "3"], "itself; expected one of 2, 4, 6, 8, or none"),
        (["--loopback", "hopgnn-fig11", "--host-cpus", "1"], "--host-cpus: there are no hosts"),
        (["--loopback", "2", "hopgnn-fig11", "--link-rate", "none"], "--link-rate: there are no h"),
        (["hopgnn-fig11", "--train.epoch=3"], r"train\.epoch: unknown key"),
        (["heta-fig9", "--model.head=true"], "head: an option of rgcn, rgat, not of 'hgt'"),
        (["baselines", "--loopback", "--sides", "DistDGL 1.1.3"], "over emulated hosts alone"),
    ],
)
def test_bad_requests_are_refused_in_a_line_before_anything_is_made(words, text, tmp_path, capsys):
    out = tmp_path / "out"
    places = ["--out", str(out), "--work", str(tmp_path / "work")]
    assert command.main([*words, *places]) == 1
    told = capsys.readouterr().err
    assert re.search(text, told)
    assert told.count("\n") == 1
    assert not out.exists()
    assert not (tmp_path / "work").exists()


def test_without_out_nothing_is_run(capsys):
    assert command.main(["hopgnn-fig11"]) == 1
    assert "--out DIR: name the folder" in capsys.readouterr().err


def test_a_wrong_grid_is_refused_before_the_first_experiment_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run_job", None)
    words = ["hopgnn-fig13", "hopgnn-fig23b", "--emulate", "3", "--out", str(tmp_path)]
    with pytest.raises(RequestError, match="hopgnn-fig23b varies the number of servers itself"):
        command.run(words, ())


def test_utilisation_needs_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(ab, "gpu_name", lambda: None)
    with pytest.raises(RequestError, match="hopgnn-gpu-util: this machine has no GPU"):
        check("hopgnn-gpu-util", tmp_path)


def test_options_replace_what_the_experiment_has():
    experiment = change(
        EXPERIMENTS["heta-fig16"],
        parse("x", "--models=rgcn", "--rounds=2", "--link-rate=1gbit,none", "--emulate=3"),
    )  # fmt: skip
    assert experiment.rounds == 2
    cells = make_cells(experiment.grid, scale=0.5)
    assert [cell.name for cell in cells] == [
        "igbhet-like-rgcn-64-link-1gbit",
        "igbhet-like-rgcn-64-link-none",
        "mag240m-like-rgcn-64-link-1gbit",
        "mag240m-like-rgcn-64-link-none",
    ]
    shapes = {(cell.scale, cell.servers, cell.link) for cell in cells}
    assert shapes == {(0.5, 3, "1gbit"), (0.5, 3, "none")}
    # Results over another link than the experiment's are not taken for the experiment's own.
    other = change(EXPERIMENTS["heta-fig16"], parse("x", "--graphs=mag-like", "--link-rate=none"))
    assert {cell.name for cell in make_cells(other.grid)} == {
        "mag-like-rgat-64-link-none",
        "mag-like-hgt-64-link-none",
    }
    # Without names, the pairs of graph and model of the experiment are run.
    assert [cell.name for cell in make_cells(EXPERIMENTS["heta-fig16"].grid)] == [
        "igbhet-like-rgat-64",
        "mag240m-like-hgt-64",
    ]


def test_the_batch_is_scaled_with_the_graph():
    grid = EXPERIMENTS["hopgnn-fig22a"].grid
    assert [cell.batch_size for cell in make_cells(grid, 0.25)] == [128, 256, 512, 1024, 2048, 4096]
    # What falls below the least is one cell, not several alike.
    assert [cell.batch_size for cell in make_cells(grid, 0.01)] == [16, 20, 41, 82, 164]
    assert [cell.batch_size for cell in make_cells(grid, batch_size=7)] == [7]
    shared = make_cells(EXPERIMENTS["heta-fig14"].grid)
    assert [cell.batch_size for cell in shared] == [512, 341, 256]


def test_hosts_share_the_machine_evenly(tmp_path):
    job = check("hopgnn-fig23b", tmp_path)
    shares = {job.request(cell).host_cpus for cell in job.cells}
    assert len(shares) == 1
    assert {cell.servers for cell in job.cells} == {2, 4, 6, 8}
    bounded = check("hopgnn-fig23b", tmp_path, "--host-cpus", "0.2")
    assert bounded.request(job.cells[0]).host_cpus == 0.2
