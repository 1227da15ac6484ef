"""Run records for the report's tests: real ones in shape, generated in any number, and hostile on
request."""

import hashlib
import json
from pathlib import Path

from sheafdeq.records import write_sealed

ROOT = Path(__file__).resolve().parents[2]


def example() -> dict:
    """The payload of a stored run, with its curves."""
    path = sorted((ROOT / "results" / "runs").glob("3d446335*/record.json"))[0]
    return json.loads(path.read_text())["payload"]


def generated(folder: Path, number: int, **changes) -> dict:
    """Write run ``number`` below the folder: another seed, level and model than its neighbours'."""
    payload = example()
    models = [
        ("sheafdeq", "SheafDEQ"),
        ("ignn", "IGNN"),
        ("appnp", "APPNP"),
        ("sheaf-cascade", "Sheaf Cascade"),
    ]
    name, title = models[number % len(models)]
    level = (1, 3, 5, 7, 9, 10)[number // 4 % 6]
    payload["id"] = hashlib.sha256(f"run {number}".encode()).hexdigest()
    payload["config"] = {
        **payload["config"],
        "seed": 42 + number,
        "learning_rate": 0.01 if number % 2 else 0.02,
    }
    payload["config"]["model"] = {"name": name, "options": {}}
    payload["config"]["task"] = {**payload["config"]["task"], "level": level}
    payload["model"] = {**payload["model"], "name": name, "title": title, "family": name}
    payload["task"] = {**payload["task"], "level": level, "title": f"community, level {level}"}
    payload["scores"] = {
        **payload["scores"],
        "test": 30.0 + number % 70,
        "validation": 31.0 + number % 69,
    }
    payload["best"] = {"epoch": 7, "validation": 31.0 + number % 69}
    payload.update(changes)
    path = folder / hashlib.sha256(payload["id"].encode()).hexdigest()
    path.mkdir(parents=True)
    write_sealed(path / "record.json", payload)
    return payload


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def hostile(folder: Path) -> dict:
    """A sealed record whose every text is markup, whose id is a path, and one of whose names is a
    megabyte long."""
    payload = example()
    payload["id"] = "../../" + HOSTILE
    payload["model"] = {
        **payload["model"],
        "name": HOSTILE,
        "title": HOSTILE,
        "family": HOSTILE,
        "options": {HOSTILE: HOSTILE},
    }
    payload["task"] = {
        **payload["task"],
        "title": "</title>" + HOSTILE,
        "score": HOSTILE,
        "name": HOSTILE,
    }
    payload["config"]["model"] = {"name": HOSTILE, "options": {HOSTILE: "]]>" + HOSTILE}}
    payload["code"] = {"version": HOSTILE, "digest": "y" * 1_000_000}
    payload["stopped"] = "javascript:alert(1)"
    payload["checkpoint"] = {HOSTILE: "'\"><svg onload=alert(1)>"}
    payload["timing"] = {"wall_seconds": "long", HOSTILE: [HOSTILE, {"deep": HOSTILE}]}
    payload["curves"] = {
        "validation": [1.0, "</script>" + HOSTILE, None, 3.0],
        "loss": [[1], {"a": 1}],
    }
    path = folder / "hostile"
    path.mkdir(parents=True)
    write_sealed(path / "record.json", payload)
    return payload
