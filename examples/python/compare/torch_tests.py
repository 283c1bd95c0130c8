"""PyTorch's own allocator tests on Headwater. The test file is PyTorch's and not part of this project: fetch it from PyTorch's
repository at the release that is installed.

    python examples/python/compare/torch_tests.py path/to/test_cuda.py --output torch-tests.json [--group A,B] [--native]

Every test runs in a process of its own, so that one that crashes is one that failed. `--native` runs the same tests on PyTorch's
own allocator, to tell what fails on this machine anyway.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# What needs no more than the plain hooks.
HOOKS = {
    "TestCuda": """test_allocator_fuzz test_caching_allocator_record_stream_oom test_graph_is_current_stream_capturing
        test_graph_capture_simple test_accelerator_graph_simple test_graphsafe_set_get_rng_state test_graph_capture_reset_recapture
        test_graph_debugdump test_graph_timing test_graph_warn_if_has_zero_nodes test_repeat_graph_capture_cublas_workspace_memory
        test_graph_rng_functional test_graph_rng_distributions test_graph_concurrent_replay test_graph_three_successive
        test_graph_record_stream test_graph_cudnn_dropout test_graph_checkpoint_preserve_rng_state
        test_graph_manual_seed_mismatch_raises test_graph_make_graphed_callables
        test_graph_make_graphed_callables_parameterless_nograd_module test_graph_make_graphed_callables_same_pool
        test_graph_optims_with_explicitly_capturable_param_groups""",
}
# What needs the shim.
SHIM = {
    "TestCuda": """test_out_of_memory test_out_of_memory_retry test_graph_capture_oom test_set_per_process_memory_fraction
        test_get_per_process_memory_fraction test_memory_allocation test_memory_stats test_cachingAllocator_raw_alloc
        test_cublas_workspace_explicit_allocation test_memory_stats_of_multiple_generators_and_graphs test_graph_two_successive
        test_graph_memory_stats_and_use_result_after_destroy_graph""",
    "TestCudaMallocAsync": """test_memory_snapshot test_memory_snapshot_with_cpp test_memory_snapshot_script test_memory_plots
        test_memory_plots_free_stack test_memory_plots_history_context test_memory_plots_free_segment_stack
        test_memory_plots_metadata test_memory_compile_regions test_memory_profiler_viz test_cpp_memory_snapshot_pickle test_cycles
        test_raises_oom test_notifies_oom test_allocator_settings""",
    "TestBlockStateAbsorption": """test_simple test_allocated_in_middle_of_segment test_multiple_middle_allocations
        test_middle_allocations_contiguous test_additional_free_following_checkpoint test_tensor_dies_after_checkpoint
        test_assigning_back_deleter_fns_to_tensor test_resnet test_check_pool_live_allocations test_allocate_in_thread_to_pool""",
    "TestMemPool": """test_mempool_id test_mempool_empty_cache test_mempool_empty_cache_inactive test_mempool_with_allocator
        test_tensor_delete_after_allocator_delete test_mempool_limited_memory_with_allocator test_mempool_no_split
        test_deleted_mempool_not_used_on_oom test_mempool_multithread test_mempool_emptycache_multithread test_nested_mempool
        test_graph_capture_reclaim_2_streams test_graph_capture_reclaim_4_streams test_mempool_ctx_multithread""",
}
RENAMED = {"TestCudaMallocAsync": ("TestCudaMallocAsync", "TestCudaAllocator")}

# PyTorch's test file touches CUDA when it is imported: Headwater comes first.
RUN = """
import runpy, sys
{enable}
sys.argv = [{path!r}, {test!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


def run(path, test, native, hooks, seconds):
    enable = "" if native else f"import headwater.torch; headwater.torch.enable(shim={'False' if hooks else 'True'})"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(path.parent), os.environ.get("PYTHONPATH", "")]))
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-c", RUN.format(enable=enable, path=str(path), test=test)],
            capture_output=True, text=True, timeout=seconds, env=environment, cwd=path.parent,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "timeout", "seconds": seconds}
    said = done.stderr + done.stdout
    taken = time.perf_counter() - begun
    if done.returncode == 0:
        skipped = "skipped=" in said or "OK (skipped" in said
        return {"outcome": "skipped" if skipped else "passed", "seconds": taken}
    if "has no attribute" in said and test.split(".")[1] in said:
        return {"outcome": "absent", "seconds": taken}
    if done.returncode < 0:
        return {"outcome": f"killed by signal {-done.returncode}", "seconds": taken, "said": said[-2000:]}
    errors = [line for line in said.splitlines() if line and not line.startswith((" ", "\t")) and ("Error" in line or "assert" in line)]
    return {"outcome": "failed", "seconds": taken, "why": errors[-1][:300] if errors else "", "said": said[-2000:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--output", default="torch-tests.json")
    parser.add_argument("--group", default="A,B", help="A: the plain hooks are enough; B: the shim is needed")
    parser.add_argument("--match", default="", help="only tests whose name contains this")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--hooks", action="store_true", help="by the plain hooks")
    parser.add_argument("--seconds", type=int, default=120, help="for each test")
    parser.add_argument("--budget", type=int, default=540, help="for all: what is left then is written down as not run")
    options = parser.parse_args()
    path = options.path.resolve()
    source = path.read_text()
    begun, results = time.perf_counter(), {}
    groups = [group for name, group in (("A", HOOKS), ("B", SHIM)) if name in options.group.split(",")]
    for group in groups:
        for suite, tests in group.items():
            named = next((name for name in RENAMED.get(suite, (suite,)) if f"class {name}(" in source), suite)
            for test in tests.split():
                name = f"{named}.{test}"
                if options.match not in name:
                    continue
                if f"def {test}(" not in source:
                    results[name] = {"outcome": "absent"}
                elif time.perf_counter() - begun > options.budget:
                    results[name] = {"outcome": "not run"}
                else:
                    results[name] = run(path, name, options.native, options.hooks, options.seconds)
                print(f"{results[name]['outcome']:8} {name} {results[name].get('why', '')}", flush=True)
                Path(options.output).write_text(json.dumps(results, indent=1))
    counts = {}
    for result in results.values():
        counts[result["outcome"]] = counts.get(result["outcome"], 0) + 1
    print(counts)


if __name__ == "__main__":
    main()
