"""Folders of images: what is read, what is random about it, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import data
from flatout.engine.experiment import Experiment
from flatout.errors import FlatoutError, RunFailed, UsageError

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]

image = pytest.importorskip("PIL.Image", reason="needs Pillow")

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of eight plain images, in three formats, one of them deeper down."""
    for name, colour in COLOURS.items():
        (tmp_path / "images" / name / "more").mkdir(parents=True)
        for number in range(8):
            ending = ("jpg", "PNG", "webp")[number % 3]
            place = "more" if number == 7 else "."
            size = (40 + number, 30 + 2 * number)
            image.new("RGB", size, colour).save(
                tmp_path / "images" / name / place / f"{number}.{ending}"
            )
    return tmp_path / "images"


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(data.normalized(images)), labels)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def built() -> nn.Module:
    made = model()
    made(torch.zeros(1, 3, 16, 16))
    return made


def test_images_of_16_bits_keep_their_shades(tmp_path: Path) -> None:
    (tmp_path / "grey").mkdir()
    shade = (0x8000).to_bytes(2, sys.byteorder)
    image.frombytes("I;16", (16, 16), shade * 256).save(tmp_path / "grey" / "a.png")
    pixels, _ = data.image_folder(tmp_path, size=16)[0]
    assert pixels.unique().tolist() == [0x80]


def test_image_folder_gives_bytes_and_the_numbers_of_sorted_classes(folder: Path) -> None:
    images = data.image_folder(folder, size=16)
    assert images.classes == ("blue", "green", "red") and len(images) == 24
    for index in range(24):
        pixels, label = images[index]
        assert pixels.shape == (3, 16, 16) and pixels.dtype == torch.uint8
        assert images.classes[label] == Path(images.path(index)).relative_to(folder).parts[0]
        wanted = torch.tensor(COLOURS[images.classes[label]]).view(3, 1, 1)
        assert (pixels.int() - wanted).abs().max() < 8
    assert images[-1][1] == images[23][1]
    with pytest.raises(IndexError):
        images[24]


def test_image_folder_reads_every_mode_of_pixels(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    grey = image.new("L", (20, 20), 100)
    for name, mode in (("a.png", "L"), ("b.png", "RGBA"), ("c.png", "P"), ("d.jpg", "CMYK"),
                       ("e.jpg", "L"), ("f.png", "1"), ("g.png", "LA")):  # fmt: skip
        grey.convert(mode).save(tmp_path / "one" / name)
    images = data.image_folder(tmp_path, size=8)
    assert all(images[index][0].shape == (3, 8, 8) for index in range(7))


def test_image_folder_takes_the_middle(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    picture = image.new("RGB", (30, 10), (255, 0, 0))
    picture.paste((0, 0, 255), (10, 0, 20, 10))
    picture.save(tmp_path / "one" / "a.png")
    pixels, _ = data.image_folder(tmp_path, size=10)[0]
    assert pixels[:, 5, 5].tolist() == [0, 0, 255] and pixels[2].float().mean() > 240


def test_image_folder_decodes_large_jpegs_smaller(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    wave = torch.linspace(0, 255, 800).to(torch.uint8).repeat(600, 1)
    image.fromarray(wave.numpy()).convert("RGB").save(tmp_path / "one" / "a.jpg", quality=95)
    image.fromarray(wave.numpy()).convert("RGB").save(tmp_path / "one" / "b.png")
    images = data.image_folder(tmp_path, size=32)
    # The whole picture at a quarter of its size is the same picture.
    assert (images[0][0].int() - images[1][0].int()).abs().max() <= 4


def test_image_is_upright_when_the_camera_was_not(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    picture = image.new("RGB", (16, 16), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 0, 16, 8))
    turned = picture.transpose(image.Transpose.ROTATE_90)
    exif = image.Exif()
    exif[274] = 6
    turned.save(tmp_path / "one" / "a.jpg", exif=exif, quality=95)
    pixels, _ = data.image_folder(tmp_path, size=16)[0]
    assert pixels[2, :6].float().mean() > 240 and pixels[0, 10:].float().mean() > 240


def test_random_crop_and_flip_are_a_function_of_the_generator(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    dice = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (60, 80, 3), generator=dice, dtype=torch.uint8)
    image.fromarray(noise.numpy()).save(tmp_path / "one" / "a.png")
    images = data.image_folder(tmp_path, size=16, random_crop=0.3, flip=True)

    def seen(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return images[0][0]

    assert torch.equal(seen(1), seen(1))
    assert len({tuple(seen(seed).flatten().tolist()) for seed in range(10)}) == 10
    flipped = data.image_folder(tmp_path, size=16, flip=True)
    plain = data.image_folder(tmp_path, size=16)[0][0]
    found = [flipped[0][0] for _ in range(20)]
    ways = [any(torch.equal(one, way) for one in found) for way in (plain, plain.flip(-1))]
    assert all(ways)


def test_normalized_is_the_textbook_formula() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2) * 10
    mean, deviation = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    shape = (1, 3, 1, 1)
    wanted = (pixels / 255 - torch.tensor(mean).view(shape)) / torch.tensor(deviation).view(shape)
    assert torch.allclose(data.normalized(pixels, mean, deviation), wanted, atol=1e-6)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_run_is_identical_on_an_image_folder(
    lab: Lab, tell: Tell, plain: Plain, folder: Path, num_workers: int
) -> None:
    seen = data.image_folder(folder, size=16, random_crop=0.5, flip=True)
    train, validation = data.split(seen, 0.25)
    assert len(train) == 18 and len(validation) == 6
    assert not set(train.indices) & set(validation.indices)
    experiment = plain(
        model=built, loss=loss, train_data=lambda: train, validation_data=lambda: validation
    )
    whole = lab.run(experiment, loader_workers=0)
    parts = lab.new(loader_workers=num_workers)
    lab.go_on(parts, experiment, stop_after=5)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


def test_validation_folder_takes_the_classes_of_training(folder: Path) -> None:
    for file in (folder / "green").rglob("*.*"):
        file.unlink()
    with pytest.raises(UsageError) as caught:
        data.image_folder(folder)
    assert caught.value.rule == "empty-class" and "`green`" in caught.value.problem
    with pytest.raises(UsageError) as caught:
        data.image_folder(folder, classes=["red", "blue"])
    assert caught.value.rule == "empty-class" and "green" in caught.value.problem
    (folder / "green" / "more").rmdir()
    (folder / "green").rmdir()
    images = data.image_folder(folder, size=4, classes=["red", "blue"])
    assert images[0][1] == 0 and images[0][0][0].float().mean() > 240


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"no image", "cut"])
def test_broken_image_is_named(
    lab: Lab, tell: Tell, plain: Plain, folder: Path, content: Any, num_workers: int
) -> None:
    broken = folder / "red" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:-200] if content == "cut" else content)
    experiment = plain(
        model=built, loss=loss, train_data=lambda: data.image_folder(folder, size=16),
        validation_data=None,
    )  # fmt: skip
    run = lab.new(loader_workers=num_workers)
    with pytest.raises(RunFailed) as caught:
        lab.go_on(run, experiment)
    assert caught.value.rule == "image-not-readable" and str(broken) in caught.value.problem
    assert tell.failure(run).rule == "image-not-readable"


def test_hidden_files_are_no_images(folder: Path) -> None:
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / "red" / "._0.jpg").write_bytes(b"left by a Mac")
    assert len(data.image_folder(folder)) == 24


def refusals(folder: Path) -> dict[str, tuple[str, Callable[[], Any]]]:
    file = folder / "red" / "0.jpg"
    words: Any = "big"
    numbers: Any = [1]
    return {
        "does not exist": ("data-path-not-found", lambda: data.image_folder(folder / "rde")),
        "is not a folder": ("no-images", lambda: data.image_folder(file)),
        "no class folders": ("no-images", lambda: data.image_folder(folder / "red" / "more")),
        "twice": ("empty-class", lambda: data.image_folder(folder, classes=["red"] + [*COLOURS])),
        "size=big": ("bad-data-option", lambda: data.image_folder(folder, size=words)),
        "random_crop=big": (
            "bad-data-option",
            lambda: data.image_folder(folder, random_crop=words),
        ),
        "='big'` is not": ("bad-data-option", lambda: data.image_folder(folder, classes=words)),
        "=[1]` is not": ("bad-data-option", lambda: data.image_folder(folder, classes=numbers)),
        "size=0": ("bad-data-option", lambda: data.image_folder(folder, size=0)),
        "random_crop=1.5": ("bad-data-option", lambda: data.image_folder(folder, random_crop=1.5)),
    }


@pytest.mark.parametrize("part", list(refusals(Path())))
def test_image_folder_is_refused(folder: Path, part: str) -> None:
    rule, call = refusals(folder)[part]
    with pytest.raises(FlatoutError) as caught:
        call()
    assert caught.value.rule == rule and part in caught.value.problem


def test_package_that_is_not_there_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image")
    with pytest.raises(UsageError) as caught:
        data.image_folder(folder)
    assert caught.value.rule == "data-package-not-installed"
    assert caught.value.fix.endswith(" install pillow")
