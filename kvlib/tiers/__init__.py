"""KV outside GPU memory: what it costs to bring it back, and how to hide or avoid that cost."""

from kvlib.tiers.batching import Batch, Work, batches, compose
from kvlib.tiers.conversation import Turn, conversation
from kvlib.tiers.documents import Ask, burst_order, chat_turns, document_questions, hit_ratio, known_documents, workload
from kvlib.tiers.gpu_copies import GpuCopies
from kvlib.tiers.hiradix import HiRadixTree, Located
from kvlib.tiers.layouts import PagePool, contiguous_copies, convert, moves
from kvlib.tiers.machine import Machine
from kvlib.tiers.measured import Measured, measure_copies
from kvlib.tiers.overlap import Overlap, Span, hidden_up_to, layer_times, overlap_layers, overlapped_prefill
from kvlib.tiers.places import CPU_MEMORY, PLACES, gpu_memory, host_link, link_to, machine_links
from kvlib.tiers.prefill_queue import serve_prefills
from kvlib.tiers.prefill_run import BatchRecord, QueueRun, Setup
from kvlib.tiers.split import Split, best_split, meeting_point, split_s
from kvlib.tiers.transfer import (
    copies_per_page, copy_bytes, effective_bandwidth, littles_law, page_tokens_for_share,
)

__all__ = [
    "Ask", "Batch", "BatchRecord", "CPU_MEMORY", "GpuCopies", "HiRadixTree", "Located", "Machine", "Measured",
    "Overlap", "PLACES", "PagePool", "QueueRun", "Setup", "Span", "Split", "Turn", "Work",
    "batches", "best_split", "burst_order", "chat_turns", "compose", "contiguous_copies", "conversation", "convert",
    "copies_per_page", "copy_bytes", "document_questions", "effective_bandwidth", "gpu_memory", "hidden_up_to",
    "hit_ratio", "host_link", "known_documents", "layer_times", "link_to", "littles_law", "machine_links",
    "measure_copies", "meeting_point", "moves", "overlap_layers", "overlapped_prefill", "page_tokens_for_share",
    "serve_prefills", "split_s", "workload",
]
