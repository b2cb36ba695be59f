# The two commands of the README, and the few that developers need. Each sets up what is missing first.
#
#   make          build
#   make test     build and run all tests
#   make train    build and run the quick start: make a corpus, pre-train a small NEST on it, report
#   make train-bev  build and run the quick start of the second family: make a town, train a small LSS + Swin on it, report
#   make sanitize run the torch-free tests under address+undefined and thread sanitizers (clang)
#   make tidy     run clang-tidy on what changed since main
#   make format   rewrite our sources with clang-format
#   make fuzz     run every fuzz target for FUZZ_SECONDS (default 60) seconds
#
# PRESET chooses a preset of CMakePresets.json (default dev, in build/); JOBS the number of compile jobs.
PRESET ?= dev
JOBS ?= $(shell scripts/build-jobs)
BUILD := $(if $(filter dev,$(PRESET)),build,build-$(PRESET))
# Some tests wait for processes and heartbeats more than they compute.
TEST_JOBS ?= $(shell expr $(JOBS) + 2)
FUZZ_SECONDS ?= 60

.PHONY: all setup configure build test train train-bev sanitize tidy format fuzz clean
all: build

setup:
	@scripts/setup.sh

# The architectures come from the GPU of this machine, except where a preset names its own.
configure: setup
	@cmake --preset $(PRESET) $(if $(filter dev cuda debug,$(PRESET)),"-DAERIE_CUDA_ARCHS=$$(scripts/setup.sh --print-archs)") \
	  > $(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@mv $(BUILD).log $(BUILD)/configure.log

build: configure
	@cmake --build $(BUILD) -j $(JOBS)

test: build
	@ctest --test-dir $(BUILD) --output-on-failure -j $(TEST_JOBS)

# Only what the quick start runs: no tests.
train: configure
	@cmake --build $(BUILD) -j $(JOBS) --target aerie
	@scripts/quick-start $(BUILD)/aerie

train-bev: configure
	@cmake --build $(BUILD) -j $(JOBS) --target aerie
	@scripts/quick-start-bev $(BUILD)/aerie

sanitize:
	@scripts/setup.sh --checks
	@scripts/sanitize $(JOBS)

tidy: configure
	@scripts/setup.sh --checks
	@scripts/tidy --build $(BUILD)

format:
	@scripts/format --fix

fuzz:
	@scripts/setup.sh --checks
	@scripts/fuzz $(FUZZ_SECONDS)

clean:
	rm -rf build build-*
