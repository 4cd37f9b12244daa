"""Files are written whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from slicewise.app.files import check_apart, check_outputs, check_writable, write_atomically
from slicewise.core.errors import UsageError


def test_a_failed_write_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UsageError, match=r"report.json' cannot be written: No space left"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_impossible_places_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        check_writable(tmp_path / "no" / "x.json")
    check_writable(tmp_path / "x.json")


def test_a_link_is_followed_and_permissions_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"news")
        assert os.read(reader, 10) == b"news"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)


def test_the_model_is_never_the_output(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    with pytest.raises(UsageError, match="is read as input"):
        check_writable(tmp_path / "." / "m.onnx", inputs=[str(model)])
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(Path())


def test_a_link_that_leads_to_itself_is_one_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="is a link to itself"):
        check_outputs([loop])
    check_outputs([tmp_path / "x.json"], inputs=[str(loop)])  # whoever reads it tells


def test_a_dash_is_no_file_name() -> None:
    with pytest.raises(UsageError, match="/dev/stdout"):
        check_writable(Path("-"))


def test_what_holds_no_text_is_never_written_over(tmp_path: Path) -> None:
    weights, old = tmp_path / "weights.data", tmp_path / "old.json"
    weights.write_bytes(bytes(16))
    old.write_text("{}")
    check_outputs((old,))
    with pytest.raises(UsageError, match="holds no text"):
        check_outputs((weights,))


def test_a_folder_that_is_replaced_keeps_apart_from_model_and_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    check_apart(folder, model="timm:resnet18", outputs=(tmp_path / "out.json", None))
    with pytest.raises(UsageError, match="would lose the model"):
        check_apart(folder, model=str(folder / "model.onnx"), outputs=())
    with pytest.raises(UsageError, match="would lose output"):
        check_apart(folder, model="m.onnx", outputs=(folder / "stages.json",))
