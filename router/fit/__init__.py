"""`prefix-router fit`: whether a model's cache fits the prompts it gets, from its own `config.json`.

`model` reads the config, `arithmetic` has the formulas, `trace` applies them to recorded prompts, `report` prints.
"""

from router.fit.arithmetic import Fit, Options, fit
from router.fit.model import ModelConfigError, ModelShape, shape_of
from router.fit.report import main

__all__ = ["Fit", "ModelConfigError", "ModelShape", "Options", "fit", "main", "shape_of"]
