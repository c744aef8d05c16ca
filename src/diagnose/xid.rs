//! What the driver's error codes mean and what to do, in our words after NVIDIA's catalogue of Xid errors. One table, for the
//! cause that judges a GPU by itself and for logs in which a GPU is only named.

/// What is known of a code.
pub(super) struct Meaning {
    /// In a few words.
    pub(super) what: &'static str,
    /// Whom it blames.
    pub(super) because: &'static str,
    /// What to do.
    pub(super) fix: &'static str,
    /// It speaks of the GPU, its memory or its links rather than of a program.
    pub(super) of_the_gpu: bool,
}

const PROGRAM: &str = "mostly a defect of the program that ran then; on a host whose direct copies are wrong also its consequence";
const MEMORY: &str = "it is the GPU's own memory or its controller, not a path between GPUs";

/// What is known of `code`, if anything.
pub(super) fn meaning(code: u32) -> Option<Meaning> {
    let of_the_gpu = !matches!(code, 13 | 31 | 43 | 45 | 154);
    let (what, because, fix) = match code {
        13 => (
            "a kernel of a program was stopped",
            PROGRAM,
            "find the program by its pid; compute-sanitizer names the access",
        ),
        31 => (
            "a program touched an address that is not mapped",
            PROGRAM,
            "find the program by its pid; where several programs do it, 'peerproof qualify'",
        ),
        43 | 45 => (
            "the work of a program was ended",
            "a consequence of an error before it or of an end by force",
            "look for the first Xid of the same time",
        ),
        48 => (
            "double-bit memory error",
            MEMORY,
            "reset the GPU, then 'nvidia-smi -q -d ECC,ROW_REMAPPER'; replace it if it comes back",
        ),
        61 | 62 => (
            "the GPU's controller stopped",
            "it is the GPU, its power or its firmware",
            "power-cycle the host; replace the GPU if it comes back",
        ),
        63 => (
            "row remapping recorded",
            "expected once after an error that could not be corrected",
            "reset the GPU so that it takes effect, then 'nvidia-smi -q -d ROW_REMAPPER'",
        ),
        64 => (
            "row remapping failed",
            MEMORY,
            "take the GPU out of service and replace it",
        ),
        74 => (
            "NVLink error",
            "it is one GPU, the other end, or what joins them",
            "'nvidia-smi nvlink -e' on both ends: which link counts errors; reseat, then replace",
        ),
        79 => (
            "the GPU fell off the bus",
            "it is the GPU, its power, its riser or its slot",
            "power-cycle the host, then reseat or replace the GPU or its riser",
        ),
        94 => (
            "contained memory error",
            MEMORY,
            "restart the program that it hit; reset the GPU when nothing runs on it",
        ),
        95 => (
            "uncontained memory error",
            MEMORY,
            "end all work on the GPU, reset it, then 'nvidia-smi -q -d ECC,ROW_REMAPPER'",
        ),
        154 => (
            "the driver says how the GPU is to be brought back",
            "a consequence of the Xid before it; the line names what is asked: a reset, or a reboot of the node",
            "do what the line names, after the first Xid of the same time was looked into",
        ),
        119 | 120 => (
            "the GPU's firmware processor stopped answering",
            "it is the firmware, or a GPU that is going",
            "power-cycle the host; where it comes back, another driver version; then replace the GPU",
        ),
        _ => return None,
    };
    Some(Meaning {
        what,
        because,
        fix,
        of_the_gpu,
    })
}

/// Codes after which a GPU is not to be trusted: row remapping failed, fell off the bus, uncontained memory error.
pub(super) fn is_fatal(code: u32) -> bool {
    matches!(code, 64 | 79 | 95)
}
