//! What an all-reduce backend keeps for itself, in bytes (facts: engines.md 1.6, 3.4, 4).

use crate::profile::WorkspaceFormula;

/// Blocks of FlashInfer's workspace unless its constructor is told otherwise.
const MAX_BLOCKS: u64 = 128;
/// Groups that FlashInfer's PCIe kernels exist for.
pub(super) const PCIE_IPC_WORLDS: [u32; 3] = [2, 4, 8];
/// Flags at the head of 1Cat's exchange file.
const HOST_REDUCE_FLAGS: u64 = 32 * 1024;

/// Rounds up to a multiple of 128 bytes.
fn aligned(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(128)
}

/// Bytes per rank of FlashInfer's PCIe IPC workspace for `max_numel` elements of 2 bytes and a group of `world`: signals,
/// and two scratch regions (pack and block), each double-buffered with room for every rank's payload. A lower bound for
/// releases that add copy-engine regions. `None` for groups that have no kernels, or beyond 64 bits.
pub fn pcie_ipc_workspace_bytes(world: u32, max_numel: u64) -> Option<u64> {
    if !PCIE_IPC_WORLDS.contains(&world) {
        return None;
    }
    let world = u64::from(world);
    let signal = aligned(4 * (MAX_BLOCKS * (2 + 8 * world) + 4))?;
    let payload = aligned(max_numel.checked_mul(2)?)?;
    let scratch = aligned(payload.checked_mul(2 * world)?)?;
    scratch.checked_mul(2)?.checked_add(signal)
}

/// Bytes per GPU of TensorRT-LLM's fusion workspace of `size` bytes: a buffer for each rank, three more sets for the
/// lamport kernels, and barriers of 256 bytes a rank.
pub fn trtllm_fusion_workspace_bytes(world: u32, size: u64) -> Option<u64> {
    let world = u64::from(world);
    size.checked_mul(world)?
        .checked_mul(4)?
        .checked_add(256 * world)
}

/// Bytes per rank by `formula` for `elements` of 2 bytes in a group of `world`; of a file in shared memory, the file.
/// `largest` is the largest payload in bytes that the backend takes.
pub(super) fn bytes(
    formula: WorkspaceFormula,
    world: u32,
    elements: Option<u64>,
    largest: Option<u64>,
) -> Option<u64> {
    match formula {
        WorkspaceFormula::FlashinferPcieIpc(times) => {
            pcie_ipc_workspace_bytes(world, elements?)?.checked_mul(times)
        }
        WorkspaceFormula::TrtllmFusion(size) => trtllm_fusion_workspace_bytes(world, size),
        WorkspaceFormula::FixedBytes(bytes) => Some(bytes),
        WorkspaceFormula::LargestPayload => largest,
        WorkspaceFormula::HostReduceFile(largest) => {
            largest.checked_mul(4)?.checked_add(HOST_REDUCE_FLAGS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked examples of facts: engines.md 7.3.
    #[test]
    fn workspace_bytes_of_the_worked_examples() {
        let table = [
            (393_216, 2, 6_300_800),
            (393_216, 4, 12_600_448),
            (393_216, 8, 25_199_744),
            (100_663_296, 8, 6_442_484_864),
            (131_072, 2, 2_106_496),
            (786_432, 2, 12_592_256),
            (786_432, 4, 25_183_360),
            (786_432, 8, 50_365_568),
            (1_048_576, 4, 33_571_968),
            (524_288, 2, 8_397_952),
            (524_288, 4, 16_794_752),
            (524_288, 8, 33_588_352),
            (3_145_728, 8, 201_360_512),
        ];
        for (numel, world, bytes) in table {
            assert_eq!(
                pcie_ipc_workspace_bytes(world, numel),
                Some(bytes),
                "{numel} at {world}"
            );
        }
        for (world, signal) in [(2, 9_344), (4, 17_536), (8, 33_920)] {
            assert_eq!(pcie_ipc_workspace_bytes(world, 0), Some(signal));
        }
        assert_eq!(pcie_ipc_workspace_bytes(6, 393_216), None);
        assert_eq!(pcie_ipc_workspace_bytes(8, u64::MAX), None);
    }

    #[test]
    fn other_formulas() {
        assert_eq!(
            trtllm_fusion_workspace_bytes(4, 64 << 20),
            Some((1 << 30) + 1024)
        );
        let file = bytes(WorkspaceFormula::HostReduceFile(262_144), 2, None, None);
        assert_eq!(file, Some(32 * 1024 + 4 * 262_144));
        let thrice = bytes(
            WorkspaceFormula::FlashinferPcieIpc(3),
            2,
            Some(786_432),
            None,
        );
        assert_eq!(thrice, Some(3 * 12_592_256));
        let none = bytes(WorkspaceFormula::FlashinferPcieIpc(1), 2, None, None);
        assert_eq!(none, None);
        assert_eq!(trtllm_fusion_workspace_bytes(8, u64::MAX), None);
    }
}
