"""Lesson 5: what masks do not give, what removing channels gives, and what it costs; with NNI 3.0.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""

from accelerando.lessons.pruning.blocks import BlockReport, measure_blocks
from accelerando.lessons.pruning.channels import Staircase, measure_staircase, predict_conv_s
from accelerando.lessons.pruning.config import config_list
from accelerando.lessons.pruning.criteria import CriteriaReport, compare_criteria
from accelerando.lessons.pruning.gap import GapReport, compare_masked_and_removed
from accelerando.lessons.pruning.groups import GroupReport, compare_groups
from accelerando.lessons.pruning.masks import (
    MaskReport,
    SparseCurve,
    measure_masks,
    measure_sparse_product,
    predict_sparse_speedup,
)
from accelerando.lessons.pruning.nets import WIDE_CNN, ResidualCnn, gated_cnn, residual_cnn
from accelerando.lessons.pruning.pruned import Pruned, filter_norms, prune, widths
from accelerando.lessons.pruning.removal import METHODS, apply_masks, find_masks, remove_channels
from accelerando.lessons.pruning.silence import quiet
from accelerando.lessons.pruning.speed import RemovalReport, RoundingReport, compare_rounding, measure_removal
from accelerando.lessons.pruning.subject import Subject, batches, example, images, new_model, train_subject, tune
from accelerando.lessons.pruning.task import START, TRAIN_PLAN, PlanTrial, check_plan, task_data, train_plan, try_plan
from accelerando.lessons.pruning.tracing import CannotPrune
from accelerando.lessons.pruning.trade_off import TradeOffCurve, measure_trade_off
from accelerando.lessons.pruning.warm_up import WarmUpReport, compare_warm_up

__all__ = [
    "METHODS",
    "START",
    "TRAIN_PLAN",
    "WIDE_CNN",
    "BlockReport",
    "CannotPrune",
    "CriteriaReport",
    "GapReport",
    "GroupReport",
    "MaskReport",
    "PlanTrial",
    "Pruned",
    "RemovalReport",
    "ResidualCnn",
    "RoundingReport",
    "SparseCurve",
    "Staircase",
    "Subject",
    "TradeOffCurve",
    "WarmUpReport",
    "apply_masks",
    "batches",
    "check_plan",
    "compare_criteria",
    "compare_groups",
    "compare_masked_and_removed",
    "compare_rounding",
    "compare_warm_up",
    "config_list",
    "example",
    "filter_norms",
    "find_masks",
    "gated_cnn",
    "images",
    "measure_blocks",
    "measure_masks",
    "measure_removal",
    "measure_sparse_product",
    "measure_staircase",
    "measure_trade_off",
    "new_model",
    "predict_conv_s",
    "predict_sparse_speedup",
    "prune",
    "quiet",
    "remove_channels",
    "residual_cnn",
    "task_data",
    "train_plan",
    "train_subject",
    "try_plan",
    "tune",
    "widths",
]
