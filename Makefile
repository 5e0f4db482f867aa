# Two commands: `make demo` and `make test`. Both set up what they need.

CARGO_FLAGS = --manifest-path native/Cargo.toml --locked
# The demo draws; without a locale, Erlang would not write UTF-8.
export ELIXIR_ERL_OPTIONS ?= +fnu
export LC_ALL ?= C.UTF-8

.PHONY: test demo setup lint format ptx gpu-bundle bench-gpu

# The tests: of the Rust crates, of the CUDA kernels without a GPU, of the Elixir library, and of the XLA custom call.
# The NIF's crate has no tests, but beside it the library has the features that it was built with, and is not built once more.
test: setup
	cargo test $(CARGO_FLAGS) --release --package selective_scan --package cuda_emulator --package selective_scan_nif
	bin/kernels-test
	mix test
	bin/xla-test

# The selective scan at 60 frames a second, for example: make demo FLAGS="--seconds 3 --backend cpu"
demo: setup
	mix run examples/realtime.exs $(FLAGS)

# Elixir and Erlang where they are missing (Debian), or what is missing and how to get it.
setup:
	@bin/setup

lint:
	mix format --check-formatted
	mix compile --warnings-as-errors
	@if command -v python3 >/dev/null; then python3 bench/publish.py --check; \
	else echo "SKIPPED: whether the README has the times of bench/published: there is no python3"; fi
	cargo fmt --manifest-path native/Cargo.toml --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

format:
	mix format
	cargo fmt --manifest-path native/Cargo.toml --all

# priv/kernels.pack: the common kernels, for machines that have an NVIDIA driver and no NVRTC, and for first calls.
ptx:
	bin/ptx

# gpu-bundle.tar.gz: what a machine with a GPU and without Rust needs to run the GPU tests, and with Elixir the rest.
gpu-bundle: setup ptx
	bin/gpu-bundle

# Every shape of bench/shapes.json by ours and by the peers that are installed: bench/results/table.md and times.svg.
bench-gpu:
	bin/bench-gpu
