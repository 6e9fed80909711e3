"""A simulated vLLM worker: a real HTTP server with a real prefix cache, modelled times, and faults on demand."""

from loadtest.simworker.config import Adapter, SimConfig
from loadtest.simworker.faults import Action, Rule
from loadtest.simworker.process import SimProcess, start_workers
from loadtest.simworker.records import Record
from loadtest.simworker.worker import SimWorker

__all__ = ["Action", "Adapter", "Record", "Rule", "SimConfig", "SimProcess", "SimWorker", "start_workers"]
