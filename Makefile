# make demo and make test do their own set-up; see README.md.
#   TORCH=cuda   pip's CUDA build of torch          PYTHON=…   a Python that imports DOLFINx
#   RANKS=3      MPI ranks of `make test-mpi`       PYTEST=…   more arguments for pytest
TORCH ?= cpu
RANKS ?= 2
PYTEST ?=
ready := .venv/ready-$(TORCH)
bin := .venv/bin

# Open MPI refuses to run as root, or with more ranks than cores, unless told to; other MPIs ignore these variables.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_mpi_yield_when_idle := 1
# MPI already parallelises the reference solves: threads on top would only compete.
test test-serial test-mpi: export OMP_NUM_THREADS := 1

.PHONY: demo test test-serial test-mpi lint clean help
help:
	@echo "make demo    sets up and runs the demos, pictures in results/"
	@echo "make test    sets up and runs the tests, serial and on $(RANKS) MPI ranks"
	@echo "make lint    ruff and mypy"
	@echo "make clean   removes .venv and caches"

demo: $(ready)
	$(bin)/python demos/demo_hierarchy.py
	$(bin)/python demos/demo_conditioning.py
	$(bin)/python demos/demo_rounding.py
	$(bin)/python demos/demo_training.py
	$(bin)/python demos/demo_hdiv_frame.py
	$(bin)/python demos/demo_least_squares_2d.py
	$(bin)/python demos/demo_curved.py
	$(bin)/python demos/demo_own_net.py
	$(bin)/python demos/demo_own_equation.py
	$(bin)/python demos/demo_elasticity.py
	$(bin)/python demos/demo_nonlinear.py
	$(bin)/python demos/demo_transport.py
	$(bin)/python demos/demo_plate.py
	$(bin)/python demos/demo_inverse.py

test: test-serial test-mpi

test-serial: $(ready)
	$(bin)/python -m pytest --numprocesses auto --maxprocesses 4 $(PYTEST)

test-mpi: $(ready)
	mpirun -n $(RANKS) $(bin)/python -m pytest -m "not serial" -q --color=no $(PYTEST)

lint: $(ready) .venv/lint
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

$(ready): docker/install docker/requirements.txt docker/requirements-torch.txt pyproject.toml
	TORCH=$(TORCH) docker/install

.venv/lint: $(ready) docker/requirements-lint.txt
	$(bin)/pip install --quiet --requirement docker/requirements-lint.txt
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache *.egg-info results
