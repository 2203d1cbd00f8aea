"""What moves the weights of a Megatron model, in two forms that do the same.

    with CUDA      Megatron's distributed optimizer: each data parallel rank keeps and moves its share
    without        torch's AdamW on each rank, since Megatron's insists on CUDA tensors

Rule 1: gradients are Megatron's ``main_grad``: float32, added up over the data parallel ranks once a step.
Rule 2: what is saved are AdamW's two means for each parameter, whole, so that a checkpoint does not depend on how many
ranks wrote it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from rollog.pipeline.training.optimizer import OptimizerSettings, make_optimizer
from rollog.pipeline.training.rank_group import RankGroup

MEANS = ("exp_avg", "exp_avg_sq")


class Mover(Protocol):
    """An optimizer. Gradients have been added up and divided when it is asked for their norm."""

    steps: int
    """How often it has moved the weights."""

    def norm(self) -> float:
        """The norm of the gradient of the whole model."""
        ...

    def step(self, rate: float, norm: float) -> None:
        """Clip the gradient, whose norm is ``norm``, and move the weights."""
        ...

    def mean(self, parameter: torch.nn.Parameter, which: str) -> torch.Tensor:
        """One of MEANS, in the shape of this rank's parameter. All data parallel ranks ask together."""
        ...

    def restore(self, parameter: torch.nn.Parameter, means: Mapping[str, torch.Tensor], steps: int) -> None:
        """Put both means into place, which ``steps`` steps have made."""
        ...


def add_up(module: Any, tokens: int) -> None:
    """Add up the gradients of all ranks, once, and divide them once by the step's ``tokens``."""
    finalize_model_grads([module])
    module.scale_gradients(1.0 / tokens)


class WholeMover:
    """torch's AdamW: every rank moves all that it holds."""

    def __init__(self, module: Any, settings: OptimizerSettings, group: RankGroup) -> None:
        self.steps = 0
        self._parameters = list(module.parameters())
        self._max_norm = settings.max_grad_norm
        self._adamw = make_optimizer(module, settings)
        self._group = group

    def norm(self) -> float:
        squares = {True: 0.0, False: 0.0}
        for parameter in self._parameters:
            squares[parameter.tensor_model_parallel] += float(parameter.main_grad.double().square().sum())
        (cut,) = self._group.total([squares[True]], parallel_state.get_tensor_model_parallel_group())
        return float((cut + squares[False]) ** 0.5)

    def step(self, rate: float, norm: float) -> None:
        for parameter in self._parameters:
            parameter.grad = parameter.main_grad
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, torch.tensor(norm))
        for options in self._adamw.param_groups:
            options["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.steps += 1

    def mean(self, parameter: torch.nn.Parameter, which: str) -> torch.Tensor:
        found: torch.Tensor = self._adamw.state[parameter][which]
        return found

    def restore(self, parameter: torch.nn.Parameter, means: Mapping[str, torch.Tensor], steps: int) -> None:
        self.steps = steps
        self._adamw.state[parameter] = {
            "step": torch.tensor(float(steps)),
            **{which: mean.to(parameter.device, copy=True) for which, mean in means.items()},
        }


class SharedMover:
    """Megatron's distributed optimizer, for CUDA."""

    def __init__(self, module: Any, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._settings = settings
        config = OptimizerConfig(
            optimizer="adam",
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            clip_grad=0.0,  # done here, after the norm was looked at
            params_dtype=torch.float32,
            use_distributed_optimizer=True,
        )
        # Without a decay of what has one dimension. There is one optimizer, as there are no experts.
        overrides = get_standard_config_overrides(config)
        (self._optimizer,) = get_megatron_optimizer(config, [module], overrides).chained_optimizers

    def norm(self) -> float:
        self._optimizer.prepare_grads()
        return float(self._optimizer.get_grad_norm())

    def step(self, rate: float, norm: float) -> None:
        clip_grad_by_total_norm_fp32(self._optimizer.get_parameters(), self._settings.max_grad_norm, norm)
        for options in self._optimizer.param_groups:
            options["lr"] = rate
            options["weight_decay"] = self._settings.weight_decay * options["wd_mult"]
        self._optimizer.step_with_ready_grads()
        self.steps += 1

    def mean(self, parameter: torch.nn.Parameter, which: str) -> torch.Tensor:
        whole = torch.zeros(parameter.numel(), device=parameter.device)
        if (share := self._share(parameter)) is not None:
            main, start, end = share
            whole[start:end] = self._optimizer.optimizer.state[main][which]
        dist.all_reduce(whole, group=parallel_state.get_data_parallel_group())
        return whole.view(parameter.shape)

    def restore(self, parameter: torch.nn.Parameter, means: Mapping[str, torch.Tensor], steps: int) -> None:
        self.steps = steps
        if (share := self._share(parameter)) is not None:
            main, start, end = share
            self._optimizer.optimizer.state[main] = {
                "step": torch.tensor(float(steps)),
                **{which: mean.flatten()[start:end].to(main.device, copy=True) for which, mean in means.items()},
            }

    def _share(self, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, int, int] | None:
        """What this data parallel rank keeps of a parameter: the moved copy, and from where to where; None: nothing."""
        if parameter not in self._optimizer.model_param_gbuf_map:
            return None
        at = self._optimizer._get_model_param_range_map(parameter)["param"]
        group, place = self._optimizer.model_param_group_index_map[parameter]
        return self._optimizer.optimizer.param_groups[group]["params"][place], at.start, at.end
