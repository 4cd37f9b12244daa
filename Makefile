# The commands of the house; CI runs `check` and `test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-quick test-slow check format docs docs-reference bench train clean

setup: $(STAMP)

# The stamp is written last, so an interrupted set-up is done again.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slicewise needs Python >= 3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

# The main job on real models: the ResNet-50 that the onnx package ships, and one of timm's by name.
demo: $(STAMP)
	@model=$$($(BIN)/python -c 'import onnx, os; print(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light/light_resnet50.onnx"))') && \
	set -x && $(BIN)/slicewise predict "$$model" --batch 1,8 \
	  --device a100-sxm4-80gb,a100-sxm4-80gb/1g.10gb,a100-sxm4-80gb/3g.40gb,h100-sxm5-80gb,cpu && \
	$(BIN)/slicewise predict timm:vit_base_patch16_224 --batch 1,32 --precision fp16 \
	  --device a100-sxm4-80gb,h100-sxm5-80gb

test: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'not slow and not gpu'

test-quick: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'not slow and not gpu' -q tests/core tests/predict tests/app tests/flows tests/test_architecture.py

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'slow'

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/reference_pages.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs-reference: $(STAMP)
	$(BIN)/python tools/devices_page.py
	$(BIN)/python tools/reference_pages.py

docs: docs-reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Every table in benchmarks/results; those that need the measured data say so and stop.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.light_cnns
	$(BIN)/python -m benchmarks.start_up
	$(BIN)/python -m benchmarks.slice_rule
	$(BIN)/python -m benchmarks.smallest_slice
	$(BIN)/python -m benchmarks.slice_constants
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.roofline_error
	$(BIN)/python -m benchmarks.torch_macs
	$(BIN)/python -m benchmarks.torch_load
	$(BIN)/python -m benchmarks.zoo_coverage
	$(BIN)/python -m benchmarks.onnx_vs_export
	$(BIN)/python -m benchmarks.fusion_check
	$(BIN)/python -m benchmarks.activation_peak
	$(BIN)/python -m benchmarks.timm_roofline
	$(BIN)/python -m benchmarks.explore_speed
	$(BIN)/python -m benchmarks.store_speed
	$(BIN)/python -m benchmarks.store_kill
	$(BIN)/python -m benchmarks.measure_trust
	$(BIN)/python -m benchmarks.tune_kills
	$(BIN)/python -m benchmarks.tune_tvm
	$(BIN)/python -m benchmarks.tune_scaling
	$(BIN)/python -m benchmarks.tune_serving
	$(BIN)/python -m benchmarks.tune_matrix
	$(BIN)/slicewise campaign benchmarks/cpu_zoo/spec.yaml
	$(BIN)/python -m benchmarks.cpu_zoo
	$(BIN)/python -m benchmarks.gpu_campaign_error
	$(BIN)/python -m benchmarks.kernel_error
	$(BIN)/python -m benchmarks.predictor_baselines
	$(BIN)/python -m benchmarks.predictor_error

# The learned weights anew: the extra `train` and the measured data are needed, and about an hour.
train: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	$(BIN)/python -m training.fit

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
