//! How many elements one decode step reduces, how many the engine would make room for by itself, and what a workspace of
//! that size costs (facts: engines.md 1.6, 3.5 and 7).

use super::request::{AdviseError, Request, Shape};
use crate::{
    model::finding::Sizing,
    profile::{AllocationRule, DraftMeaning, Dtype, EngineProfile},
};

/// Blocks of FlashInfer's workspace unless its constructor is told otherwise.
const MAX_BLOCKS: u64 = 128;
/// Rows that SGLang's adapter makes room for when it does not know the captured number of requests.
const FALLBACK_ROWS: u64 = 64;
/// Groups that FlashInfer's PCIe kernels exist for.
pub(crate) const PCIE_IPC_WORLDS: [u32; 3] = [2, 4, 8];

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

/// Largest CUDA graph, in tokens, that vLLM captures by itself for `max_num_seqs` requests of `rows` rows each: the ladder
/// 1, 2, 4, 8 to 248 by 8, then by 16, up to min(2 x tokens of a full decode step, 512, or 1024 on compute capability
/// 10.x); with speculation every size is rounded up to whole requests, and those past the largest size are dropped.
pub fn vllm_largest_capture(max_num_seqs: u64, rows: u64, blackwell_datacenter: bool) -> u64 {
    let ceiling = if blackwell_datacenter { 1024 } else { 512 };
    let cap = max_num_seqs
        .saturating_mul(rows)
        .saturating_mul(2)
        .min(ceiling);
    let ladder = || {
        [1, 2, 4]
            .into_iter()
            .chain((8..256).step_by(8))
            .chain((256..=ceiling).step_by(16))
            .filter(move |size| *size <= cap)
    };
    let largest = ladder().max().unwrap_or(0);
    if rows <= 1 {
        return largest;
    }
    ladder()
        .map(|size: u64| size.next_multiple_of(rows))
        .filter(|size| *size <= largest)
        .max()
        .unwrap_or(0)
}

/// Rows verified per request, and how the number came about.
pub(crate) fn rows_per_request(
    engine: &EngineProfile,
    request: &Request,
) -> Result<(u64, String), AdviseError> {
    if let Some(rows) = request.rows_per_request {
        return if rows == 0 {
            Err(AdviseError::Zero("--rows-per-request"))
        } else {
            Ok((rows, format!("--rows-per-request {rows}, as given")))
        };
    }
    let rules = &engine.speculation;
    let method = match &request.spec {
        None => None,
        Some(name) => {
            let upper = name.trim().to_ascii_uppercase();
            let found = rules.methods.iter().find(|m| m.names.contains(&upper));
            if found.is_none() && !rules.methods.is_empty() {
                let known: Vec<&str> = rules
                    .methods
                    .iter()
                    .flat_map(|m| &m.names)
                    .map(String::as_str)
                    .collect();
                return Err(AdviseError::UnknownMethod {
                    name: name.clone(),
                    engine: engine.name.clone(),
                    known: known.join(", "),
                });
            }
            Some((upper, found))
        }
    };
    let default = method.as_ref().and_then(|(_, m)| m.and_then(|m| m.default));
    let number = match (request.draft_tokens.or(default), &method) {
        (Some(number), _) => number,
        (None, None) => return Ok((1, "no speculation: one row per request".to_string())),
        (None, Some((name, _))) => {
            return Err(AdviseError::DraftTokensMissing {
                method: name.clone(),
                flag: rules.flag.clone(),
                engine: engine.name.clone(),
            });
        }
    };
    let meaning = method
        .as_ref()
        .and_then(|(_, m)| m.map(|m| m.meaning))
        .unwrap_or(rules.meaning);
    let what = match &method {
        Some((name, _)) => format!("{} with {name}", engine.name),
        None => engine.name.clone(),
    };
    let plus_one = || number.checked_add(1).ok_or(AdviseError::TooLarge);
    match meaning {
        DraftMeaning::Rows if number == 0 => Err(AdviseError::Zero(
            "--draft-tokens of an engine or method that counts rows",
        )),
        DraftMeaning::Rows => Ok((
            number,
            format!(
                "{what}: {} {number} counts the rows verified, the bonus row included",
                rules.flag
            ),
        )),
        DraftMeaning::Drafts => Ok((
            plus_one()?,
            format!(
                "{what}: {} {number} counts drafts; the bonus row makes {number} + 1",
                rules.flag
            ),
        )),
        DraftMeaning::Block => Ok((
            plus_one()?,
            format!("{what}: block size {number}, plus one row: {number} + 1"),
        )),
    }
}

/// The arithmetic for one request. `blackwell_datacenter`: every GPU has compute capability 10.x.
pub(crate) fn sizing(
    engine: &EngineProfile,
    request: &Request,
    shape: &Shape,
    blackwell_datacenter: bool,
) -> Result<Sizing, AdviseError> {
    if request.batch == 0 {
        return Err(AdviseError::Zero("--batch"));
    }
    let (rows_per_request, rows_reason) = rows_per_request(engine, request)?;
    let times = |a: u64, b: u64| a.checked_mul(b).ok_or(AdviseError::TooLarge);
    let rows = times(request.batch, rows_per_request)?;
    let needed = times(rows, shape.hidden)?;
    let payload_bytes = times(needed, shape.dtype.bytes())?;
    let (engine_elements, engine_reason) = match engine.allocation {
        AllocationRule::CapturedRequests => (
            times(FALLBACK_ROWS, shape.hidden)?,
            format!(
                "{FALLBACK_ROWS} rows x {} while the number of captured requests is not known to it; with --cuda-graph-max-bs-decode {} it takes {} x {rows_per_request} rows x {} = {}",
                shape.hidden,
                request.batch,
                request.batch,
                shape.hidden,
                grouped(needed)
            ),
        ),
        AllocationRule::CapturedTokens => {
            let largest =
                vllm_largest_capture(request.batch, rows_per_request, blackwell_datacenter);
            (
                times(largest, shape.hidden)?,
                format!(
                    "with --max-num-seqs {} the largest captured graph has {largest} rows (tokens): min({} x {rows_per_request} x 2, {}) on its ladder of sizes, rounded to whole requests; x {}",
                    request.batch,
                    request.batch,
                    if blackwell_datacenter { 1024 } else { 512 },
                    shape.hidden
                ),
            )
        }
    };
    let two_bytes = shape.dtype != Dtype::Fp32;
    let workspace = two_bytes
        .then(|| pcie_ipc_workspace_bytes(request.tp, needed))
        .flatten();
    Ok(Sizing {
        model: shape.label.clone(),
        hidden: shape.hidden,
        tp: request.tp,
        batch: request.batch,
        rows_per_request,
        rows_reason,
        rows,
        needed_elements: needed,
        engine_elements: Some(engine_elements),
        engine_reason,
        payload_bytes,
        workspace_bytes_per_rank: workspace,
        workspace_formula: workspace.map(|_| {
            "FlashInfer pcie_ipc: a(4*(128*(2+8W)+4)) + 2*a(2*W*a(2n)), a() rounds up to 128 bytes; SGLang's own text says half of it".to_string()
        }),
        dtype: shape.dtype.name().to_string(),
    })
}

/// Row counts to capture so that vLLM's largest graph is exactly `batch` requests: whole requests, by powers of two.
pub(crate) fn capture_sizes(batch: u64, rows: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = std::iter::successors(Some(1u64), |n| n.checked_mul(2))
        .take_while(|n| *n < batch)
        .chain(std::iter::once(batch))
        .filter_map(|n| n.checked_mul(rows))
        .collect();
    sizes.dedup();
    sizes
}

/// 786432 as "786,432".
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profiles;

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

    /// The worked examples of facts: engines.md 7.3; k drafts are k + 1 rows.
    #[test]
    fn vllm_capture_maxima() {
        let table = [
            (256, 0, 512),
            (16, 3, 128),
            (32, 5, 384),
            (48, 5, 498),
            (64, 3, 512),
            (64, 5, 498),
            (6, 6, 77),
        ];
        for (seqs, k, largest) in table {
            assert_eq!(
                vllm_largest_capture(seqs, k + 1, false),
                largest,
                "({seqs}, {k})"
            );
        }
        assert_eq!(vllm_largest_capture(48, 6, true), 576);
        assert_eq!(vllm_largest_capture(1, 1, false), 2);
        assert_eq!(vllm_largest_capture(0, 1, false), 0);
    }

    fn size(
        engine: &str,
        hidden: u64,
        batch: u64,
        draft: Option<u64>,
        spec: Option<&str>,
    ) -> Sizing {
        let profiles = Profiles::embedded().unwrap();
        let request = Request {
            engine: engine.into(),
            hidden: Some(hidden),
            tp: 8,
            batch,
            draft_tokens: draft,
            spec: spec.map(String::from),
            ..Request::default()
        };
        let shape = super::super::request::shape(&request, &profiles)
            .unwrap()
            .unwrap();
        sizing(profiles.engine(engine).unwrap(), &request, &shape, false).unwrap()
    }

    #[test]
    fn sixty_four_rows_of_6144() {
        let sizing = size("sglang", 6144, 64, None, None);
        assert_eq!(sizing.rows, 64);
        assert_eq!(sizing.needed_elements, 393_216);
        assert_eq!(sizing.engine_elements, Some(393_216));
        assert_eq!(sizing.payload_bytes, 768 * 1024);
        assert_eq!(sizing.workspace_bytes_per_rank, Some(25_199_744));
    }

    #[test]
    fn thirty_two_requests_of_six_rows_of_4096() {
        let sizing = size("sglang", 4096, 32, Some(5), Some("dspark"));
        assert_eq!(sizing.rows_per_request, 6);
        assert_eq!(sizing.needed_elements, 786_432);
        assert_eq!(sizing.engine_elements, Some(262_144));
        assert!(
            sizing.engine_reason.contains("786,432"),
            "{}",
            sizing.engine_reason
        );
        assert!(sizing.rows_reason.contains("block size 5"));
    }

    #[test]
    fn vllm_of_32_sequences_with_5_drafts_makes_room_for_384_rows() {
        let sizing = size("vllm", 4096, 32, Some(5), None);
        assert_eq!(sizing.rows, 192);
        assert_eq!(sizing.needed_elements, 786_432);
        assert_eq!(sizing.engine_elements, Some(384 * 4096));
        assert!(sizing.engine_reason.contains("384 rows"));
        assert_eq!(
            size("vllm", 4096, 48, Some(5), None).engine_elements,
            Some(2_039_808)
        );
    }

    #[test]
    fn the_same_five_is_five_rows_in_one_engine_and_six_in_the_other() {
        assert_eq!(size("sglang", 4096, 1, Some(5), None).rows_per_request, 5);
        assert_eq!(
            size("sglang", 4096, 1, Some(5), Some("EAGLE3")).rows_per_request,
            5
        );
        assert_eq!(
            size("sglang", 4096, 1, Some(5), Some("DFLASH")).rows_per_request,
            5
        );
        assert_eq!(
            size("sglang", 4096, 1, None, Some("NGRAM")).rows_per_request,
            12
        );
        assert_eq!(size("vllm", 4096, 1, Some(5), None).rows_per_request, 6);
        assert_eq!(
            size("vllm", 4096, 1, Some(5), Some("eagle3")).rows_per_request,
            6
        );
        assert_eq!(size("vllm", 4096, 1, Some(0), None).rows_per_request, 1);
        assert_eq!(size("vllm", 4096, 1, None, None).rows_per_request, 1);
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        let profiles = Profiles::embedded().unwrap();
        let sglang = profiles.engine("sglang").unwrap();
        let ask = |request: Request| rows_per_request(sglang, &request).unwrap_err().to_string();
        let zero = Request {
            draft_tokens: Some(0),
            ..Request::default()
        };
        assert!(ask(zero).contains("at least 1"));
        let method = Request {
            spec: Some("WISH".into()),
            ..Request::default()
        };
        let said = ask(method);
        assert!(
            said.contains("DSPARK") && said.contains("--rows-per-request"),
            "{said}"
        );
        let missing = Request {
            spec: Some("eagle".into()),
            ..Request::default()
        };
        assert!(ask(missing).contains("--speculative-num-draft-tokens"));
        let rows = Request {
            rows_per_request: Some(7),
            spec: Some("WISH".into()),
            ..Request::default()
        };
        assert_eq!(rows_per_request(sglang, &rows).unwrap().0, 7);
    }

    #[test]
    fn vllm_knows_its_methods_and_refuses_others() {
        let profiles = Profiles::embedded().unwrap();
        let vllm = profiles.engine("vllm").unwrap();
        let ask = |spec: &str| {
            let request = Request {
                spec: Some(spec.into()),
                draft_tokens: Some(5),
                ..Request::default()
            };
            rows_per_request(vllm, &request)
        };
        for method in ["eagle3", "mtp", "ngram", "deepseek_mtp", "DFLASH"] {
            assert_eq!(ask(method).unwrap().0, 6, "{method}");
        }
        let said = ask("WISH").unwrap_err().to_string();
        assert!(
            said.contains("of vLLM (known: EAGLE, EAGLE3, MTP"),
            "{said}"
        );
    }

    #[test]
    fn captures_are_whole_requests_up_to_the_batch() {
        assert_eq!(capture_sizes(32, 6), [6, 12, 24, 48, 96, 192]);
        assert_eq!(capture_sizes(6, 2), [2, 4, 8, 12]);
        assert_eq!(capture_sizes(1, 3), [3]);
        assert_eq!(grouped(786_432), "786,432");
        assert_eq!(grouped(12), "12");
    }
}
