//! How many elements one decode step reduces, how many the engine would make room for by itself, and what a workspace of
//! that size costs (facts: engines.md 1.6, 3.5 and 7).

use super::{
    admission::{admitted, tune_rows},
    request::{AdviseError, Request, Shape},
    workspace::pcie_ipc_workspace_bytes,
};
use crate::{
    model::{finding::Sizing, reduction::Dtype},
    profile::{AllocationRule, DraftMeaning, EngineProfile, WorkspaceFormula},
};

/// Rows that SGLang's adapter makes room for when it does not know the captured number of requests.
const FALLBACK_ROWS: u64 = 64;
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
    let Some(rules) = &engine.speculation else {
        return match (&request.spec, request.draft_tokens) {
            (None, None) => Ok((1, "no speculation: one row per request".to_string())),
            _ => Err(AdviseError::DraftsUnknown(engine.name.clone())),
        };
    };
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
        None => (
            None,
            "its memory for reductions does not follow from the model".to_string(),
        ),
        Some(AllocationRule::CapturedRequests) => (
            Some(times(FALLBACK_ROWS, shape.hidden)?),
            format!(
                "{FALLBACK_ROWS} rows x {} while the number of captured requests is not known to it; with --cuda-graph-max-bs-decode {} it takes {} x {rows_per_request} rows x {} = {}",
                shape.hidden,
                request.batch,
                request.batch,
                shape.hidden,
                grouped(needed)
            ),
        ),
        Some(AllocationRule::CapturedTokens) if request.eager => (
            None,
            "launched call by call it captures no graph, and no captured size makes room"
                .to_string(),
        ),
        Some(AllocationRule::CapturedTokens) => {
            let largest =
                vllm_largest_capture(request.batch, rows_per_request, blackwell_datacenter);
            (
                Some(times(largest, shape.hidden)?),
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
    let copies = engine.backends.iter().find_map(|b| match b.workspace {
        Some(WorkspaceFormula::FlashinferPcieIpc(times)) => Some(times),
        _ => None,
    });
    let workspace_of = |elements: u64| {
        let copies = copies.filter(|_| two_bytes)?;
        pcie_ipc_workspace_bytes(request.tp, elements)?.checked_mul(copies)
    };
    let workspace = workspace_of(needed);
    let admission = |elements: u64| admitted(elements, shape.hidden, rows_per_request);
    let prefill = times(PREFILL_ROWS, shape.hidden)
        .ok()
        .filter(|_| workspace.is_some())
        .and_then(workspace_of);
    Ok(Sizing {
        model: shape.label.clone(),
        hidden: shape.hidden,
        tp: request.tp,
        batch: request.batch,
        rows_per_request,
        rows_reason,
        rows,
        needed_elements: needed,
        engine_elements,
        engine_reason,
        payload_bytes,
        workspace_bytes_per_rank: workspace,
        workspace_formula: workspace.map(|_| {
            let times = copies.filter(|n| *n > 1).map_or(String::new(), |n| format!("{n} channels x "));
            format!("FlashInfer pcie_ipc: {times}a(4*(128*(2+8W)+4)) + 2*a(2*W*a(2n)), a() rounds up to 128 bytes; SGLang's own text says half of it")
        }),
        dtype: shape.dtype.name().to_string(),
        workspace_bytes_all_ranks: workspace.and_then(|b| b.checked_mul(u64::from(request.tp))),
        tune_rows: workspace.map(|_| tune_rows(rows)).unwrap_or_default(),
        admits: admission(needed).sentence(),
        engine_admits: engine_elements
            .filter(|own| *own < needed)
            .map(|own| admission(own).sentence()),
        prefill: prefill.map_or_else(String::new, |wide| {
            format!(
                "stays out: room for a chunk of {} rows would take {} bytes per rank, {} times as much, and a wider buffer costs time in every small step (eight ranks, 8k context: first token after 3176 ms against 1849 ms with a decode-sized one, sglang#34528); larger tensors go to NCCL",
                grouped(PREFILL_ROWS),
                grouped(wide),
                PREFILL_ROWS / rows.max(1)
            )
        }),
        all_reduces: shape.all_reduces,
        crossing: None,
    })
}

impl Sizing {
    /// Turns the arithmetic of reductions into that of a split that reduces nothing: the rows of a step go once from each GPU
    /// of `world` to the next, as values of `dtype`.
    pub(super) fn cross(&mut self, world: u32, dtype: Dtype) {
        let bytes = self.needed_elements.saturating_mul(dtype.bytes());
        let seams = world.saturating_sub(1);
        self.payload_bytes = bytes;
        self.dtype = dtype.name().to_string();
        self.all_reduces = None;
        self.workspace_bytes_per_rank = None;
        self.workspace_bytes_all_ranks = None;
        self.workspace_formula = None;
        self.tune_rows = Vec::new();
        self.admits = String::new();
        self.engine_admits = None;
        self.prefill = String::new();
        self.crossing = Some(format!(
            "no all-reduce; in a decode step {} bytes ({} rows x {} hidden x {} bytes) go once from each GPU to the next: {seams} {} for {world} GPUs",
            grouped(bytes),
            grouped(self.rows),
            grouped(self.hidden),
            dtype.bytes(),
            if seams == 1 { "crossing" } else { "crossings" },
        ));
    }
}

/// Rows of a prefill chunk that people sized a workspace for, by mistake.
const PREFILL_ROWS: u64 = 16_384;

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
        let shape = super::super::request::shape(&request, &profiles, None)
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

    /// The worked examples of facts: engines.md 7.3.
    #[test]
    fn what_a_size_admits() {
        let forgotten = admitted(131_072, 4096, 6);
        assert_eq!((forgotten.rows, forgotten.requests), (32, 5));
        let told = forgotten.sentence();
        assert!(
            told.contains(
                "5 requests of 6 rows; with request 6 the step has 36 rows and goes to NCCL"
            ),
            "{told}"
        );
        let right = size("sglang", 4096, 32, Some(5), Some("DSPARK"));
        assert!(
            right.admits.contains("with request 33 "),
            "{}",
            right.admits
        );
        assert!(
            right
                .engine_admits
                .unwrap()
                .contains("admit 64 rows: 10 requests")
        );
        assert_eq!(right.tune_rows, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
        assert_eq!(right.workspace_bytes_all_ranks, Some(8 * 50_365_568));
        // 48 running requests of a published recipe do not fit its 786,432 elements.
        assert!(48 * 6 > admitted(786_432, 4096, 6).rows);
        assert_eq!(admitted(5, 0, 0).requests, 0);
        assert_eq!(tune_rows(1), [1]);
        assert_eq!(tune_rows(64), [1, 2, 4, 8, 16, 32, 64]);
        assert!(tune_rows(0).is_empty());
    }

    /// The worked examples of facts: engines.md 7.3.
    #[test]
    fn elements_and_payloads_of_the_worked_examples() {
        let table = [
            // engine, hidden, requests, drafts, method; elements, payload
            ("sglang", 6144, 64, None, None, 393_216, 768 << 10),
            ("sglang", 4096, 32, None, None, 131_072, 256 << 10),
            (
                "sglang",
                4096,
                32,
                Some(5),
                Some("DSPARK"),
                786_432,
                1_572_864,
            ),
            ("sglang", 4096, 64, Some(4), None, 1_048_576, 2 << 20),
            ("sglang", 4096, 32, Some(4), None, 524_288, 1 << 20),
            ("sglang", 6144, 128, Some(4), None, 3_145_728, 6 << 20),
            ("vllm", 6144, 128, Some(3), Some("MTP"), 3_145_728, 6 << 20),
            // The ladder of payloads.
            ("sglang", 6144, 1, None, None, 6144, 12 << 10),
            ("sglang", 4096, 1, Some(6), None, 24_576, 48 << 10),
            ("sglang", 5120, 1, Some(6), None, 30_720, 60 << 10),
            ("sglang", 6144, 8, None, None, 49_152, 96 << 10),
            ("sglang", 6144, 32, None, None, 196_608, 384 << 10),
        ];
        for (engine, hidden, batch, draft, spec, elements, payload) in table {
            let sizing = size(engine, hidden, batch, draft, spec);
            assert_eq!(
                (sizing.needed_elements, sizing.payload_bytes),
                (elements, payload),
                "{engine} {hidden} {batch}"
            );
        }
        let prefill = size("sglang", 6144, 64, None, None).prefill;
        assert!(
            prefill.contains("6,442,484,864 bytes per rank, 256 times"),
            "{prefill}"
        );
    }

    /// Eligibility from sizes: facts: engines.md 7.3, with the limits of the profiles.
    #[test]
    fn rows_that_limits_admit() {
        let profiles = Profiles::embedded().unwrap();
        let limit = |engine: &str, backend: &str, world: u32| {
            let found = profiles.engine(engine).unwrap().backend(backend).unwrap();
            let caps = found.caps.iter();
            caps.filter(|c| c.world.contains(&world) && c.compute.is_empty())
                .map(|c| c.max_bytes)
                .next()
                .unwrap()
        };
        let rows = |bytes: u64, hidden: u64| admitted(bytes / 2, hidden, 1).rows;
        let host_reduce = limit("1cat-vllm", "host-reduce", 2);
        assert_eq!(host_reduce, 256 << 10);
        for (hidden, expected) in [(4096, 32), (5120, 25), (8192, 16)] {
            assert_eq!(rows(host_reduce, hidden), expected);
        }
        for (engine, backend) in [
            ("vllm", "custom-all-reduce"),
            ("sglang", "custom-all-reduce-legacy"),
        ] {
            let bytes = limit(engine, backend, 2);
            assert_eq!(
                (rows(bytes, 4096), rows(bytes, 6144)),
                (1023, 682),
                "{engine}"
            );
        }
        assert_eq!(
            rows(limit("tensorrt-llm", "one-shot-two-shot", 4), 4096),
            976
        );
        assert_eq!(
            rows(limit("tensorrt-llm", "one-shot-two-shot", 2), 4096),
            1953
        );
        for world in [2, 4, 8] {
            let bytes = limit("tensorrt-llm", "one-shot-two-shot-64-mib", world);
            assert_eq!(rows(bytes, 4096), 8192);
        }
    }

    #[test]
    fn drafts_that_nobody_read_are_not_guessed() {
        let profiles = Profiles::embedded().unwrap();
        let llama = profiles.engine("llama.cpp").unwrap();
        let drafts = Request {
            draft_tokens: Some(4),
            ..Request::default()
        };
        let said = rows_per_request(llama, &drafts).unwrap_err().to_string();
        assert!(said.contains("--rows-per-request"), "{said}");
        assert_eq!(rows_per_request(llama, &Request::default()).unwrap().0, 1);
        let trt = profiles.engine("trtllm").unwrap();
        assert_eq!(rows_per_request(trt, &drafts).unwrap().0, 5);
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
