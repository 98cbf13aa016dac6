#!/usr/bin/env bash
# The periodic gradient analysis of the sokoban lab: analyses at steps 1, 51 and 101.
#   bash labs/scripts/runs/run_sokoban_ppo_filter_grad_analysis.sh [--steps N] [--gpus 0,1] [key=value ...]
# --steps is trainer.total_training_steps; --gpus says which devices there are, and the lab takes the first.
set -euo pipefail

overrides=(preset=grad_analysis)
while (($#)); do
  case "$1" in
    --steps | --gpus)
      (($# > 1)) || { echo "$1 needs a value" >&2; exit 2; }
      if [[ "$1" == --steps ]]; then
        overrides+=("trainer.total_training_steps=$2")
      else
        gpus=(${2//,/ })
        export CUDA_VISIBLE_DEVICES="$2"
        overrides+=("trainer.n_gpus_per_node=${#gpus[@]}" "system.CUDA_VISIBLE_DEVICES='$2'")
      fi
      shift 2
      ;;
    --*) echo "unknown option $1: there are --steps and --gpus, and key=value" >&2; exit 2 ;;
    *) overrides+=("$1"); shift ;;
  esac
done
exec "${GRADIOMETER:-gradiometer}" train sokoban "${overrides[@]}"
