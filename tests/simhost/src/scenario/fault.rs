//! Faults: which ordered pair, which mechanism, what goes wrong, how often. One line of text each:
//!
//! `SRC>DST:MECHANISM=KIND[:WHEN][:name=value...]`
//!
//! SRC and DST are where bytes come from and go to: a GPU number, `*`, or `host`. A mechanism may carry `ipc.` in front:
//! only through a mapping opened from another process.
use std::str::FromStr;

/// Ways in which bytes move, as they can be told apart below the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Copy engine of the source GPU, peer access on.
    CePush,
    /// Copy engine of the destination GPU, peer access on.
    CePull,
    /// The driver's copy through host memory, peer access off.
    Staged,
    /// Device to host.
    BounceD2h,
    /// Host to device.
    BounceH2d,
    /// Loads of an SM from a peer: the source is the owner of the memory.
    SmLoad,
    /// Stores of an SM to a peer.
    SmStore,
    /// Atomics of an SM on a peer: the source is the GPU that executes.
    Atomic,
    /// Own memory of one GPU, written by its kernels.
    Own,
    /// Enabling peer access: the source is the context that enables.
    Enable,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Zeros arrive.
    Zeroed,
    /// Ones arrive, as in an aborted read.
    Ones,
    /// Nothing arrives.
    Dropped,
    /// The accessor sees the data, the owner does not.
    Mirrored,
    /// What the transfer before carried arrives.
    Stale,
    /// Another pair's bytes arrive, or the bytes go to GPU `to`.
    Misrouted {
        /// GPU that gets the bytes.
        to: Option<usize>,
    },
    /// Also written past the end.
    Spilled {
        /// How far.
        bytes: usize,
    },
    /// Everything lands some bytes further.
    Shifted {
        /// How far.
        bytes: usize,
    },
    /// Bits are inverted.
    Flipped {
        /// Bits of one byte.
        mask: u8,
        /// One byte in so many.
        every: usize,
    },
    /// Only the first bytes arrive, or all but a hole.
    Partial {
        /// Where the missing part starts.
        keep: usize,
        /// Length of the missing part; 0: to the end.
        hole: usize,
    },
    /// Takes longer in modelled time.
    Slow {
        /// Factor.
        factor: f64,
    },
    /// Never completes.
    Hang,
    /// Poisons the context.
    Sticky {
        /// Result code.
        code: u32,
    },
    /// Kills the process.
    Death,
    /// Peer access is refused.
    Refusal {
        /// Result code.
        code: u32,
    },
}

/// When a fault strikes; the unit is one copy, or one launch that touches the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// Each time.
    Always,
    /// The first time only, in the whole run, whatever process.
    Once,
    /// Each n-th time.
    Every(u64),
    /// Each time after the first n.
    After(u64),
}

/// One end of a pair pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Any GPU.
    Any,
    /// This GPU.
    Gpu(usize),
    /// Host memory.
    Host,
}

impl End {
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "*" => Some(End::Any),
            "host" => Some(End::Host),
            n => n.parse().ok().map(End::Gpu),
        }
    }
    fn fits(self, place: Option<usize>) -> bool {
        match self {
            End::Any => place.is_some(),
            End::Gpu(n) => place == Some(n),
            End::Host => place.is_none(),
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// As written.
    pub text: String,
    source: End,
    destination: End,
    mechanisms: Vec<Mechanism>,
    ipc_only: bool,
    /// What goes wrong.
    pub kind: Kind,
    /// How often.
    pub when: Occurrence,
    /// Only at or past this offset of device memory.
    pub min_offset: u64,
    /// Only for transfers of at least so many bytes.
    pub min_bytes: u64,
}

impl Fault {
    /// GPUs that the fault names.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        let to = match self.kind {
            Kind::Misrouted { to } => to,
            _ => None,
        };
        [self.source, self.destination]
            .into_iter()
            .filter_map(|e| if let End::Gpu(n) = e { Some(n) } else { None })
            .chain(to)
    }

    /// Whether the fault is about this pair (None is host memory) and mechanism.
    pub fn concerns(
        &self,
        source: Option<usize>,
        destination: Option<usize>,
        mechanism: Mechanism,
        ipc: bool,
    ) -> bool {
        let own = mechanism == Mechanism::Own;
        (own || source != destination || source.is_none())
            && self.mechanisms.contains(&mechanism)
            && self.source.fits(source)
            && self.destination.fits(destination)
            && (ipc || !self.ipc_only)
    }

    /// Whether it strikes the `count`-th time (from 0).
    pub fn strikes(&self, count: u64) -> bool {
        match self.when {
            Occurrence::Always => true,
            Occurrence::Once => count == 0,
            Occurrence::Every(n) => (count + 1).is_multiple_of(n.max(1)),
            Occurrence::After(n) => count >= n,
        }
    }
}

const PEER: [Mechanism; 5] = [
    Mechanism::CePush,
    Mechanism::CePull,
    Mechanism::SmLoad,
    Mechanism::SmStore,
    Mechanism::Atomic,
];

fn mechanisms(text: &str) -> Option<Vec<Mechanism>> {
    Some(match text {
        "any" => PEER.to_vec(),
        "ce" => vec![Mechanism::CePush, Mechanism::CePull],
        "sm" => vec![Mechanism::SmLoad, Mechanism::SmStore, Mechanism::Atomic],
        "ce_push" => vec![Mechanism::CePush],
        "ce_pull" => vec![Mechanism::CePull],
        "staged" => vec![Mechanism::Staged],
        "bounce_d2h" => vec![Mechanism::BounceD2h],
        "bounce_h2d" => vec![Mechanism::BounceH2d],
        "sm_load" => vec![Mechanism::SmLoad],
        "sm_store" => vec![Mechanism::SmStore],
        "atomic" => vec![Mechanism::Atomic],
        "own" => vec![Mechanism::Own],
        "enable" => vec![Mechanism::Enable],
        _ => return None,
    })
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!("fault `{text}`: {what}; expected SRC>DST:MECHANISM=KIND[:WHEN][:name=value]")
        };
        let (pair, rest) = text.split_once(':').ok_or_else(|| bad("no mechanism"))?;
        let (source, destination) = pair.split_once('>').ok_or_else(|| bad("no pair"))?;
        let ends = End::parse(source)
            .zip(End::parse(destination))
            .ok_or_else(|| bad("an end is neither a number, * nor host"))?;
        let mut words = rest.split(':');
        let (mechanism, kind) = words
            .next()
            .and_then(|w| w.split_once('='))
            .ok_or_else(|| bad("no kind"))?;
        let (ipc_only, name) = match mechanism {
            "ipc" => (true, "any"),
            m => m.strip_prefix("ipc.").map_or((false, m), |m| (true, m)),
        };
        let mut mechanisms =
            mechanisms(name).ok_or_else(|| bad(&format!("no mechanism `{name}`")))?;
        let (mut when, mut min_offset, mut min_bytes) = (Occurrence::Always, 0, 0);
        let mut numbers: Vec<(&str, f64)> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number =
                || parse_number(value).ok_or_else(|| bad(&format!("`{word}` needs a number")));
            match key {
                "always" => when = Occurrence::Always,
                "once" | "first" => when = Occurrence::Once,
                "every" if !matches!(kind, "flipped") => when = Occurrence::Every(number()? as u64),
                "nth" => when = Occurrence::Every(number()? as u64),
                "after" => when = Occurrence::After(number()? as u64),
                "min_offset" => min_offset = number()? as u64,
                "min_bytes" => min_bytes = number()? as u64,
                "bytes" | "mask" | "every" | "factor" | "code" | "keep" | "hole" | "to" => {
                    numbers.push((key, number()?))
                }
                _ => return Err(bad(&format!("no option `{word}`"))),
            }
        }
        let option = |key: &str| numbers.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let (kind, allowed): (Kind, &[&str]) = match kind {
            "zeroed" => (Kind::Zeroed, &[]),
            "ones" => (Kind::Ones, &[]),
            "dropped" => (Kind::Dropped, &[]),
            "mirrored" => (Kind::Mirrored, &[]),
            "stale" => (Kind::Stale, &[]),
            "misrouted" => (
                Kind::Misrouted {
                    to: option("to").map(|v| v as usize),
                },
                &["to"],
            ),
            "spilled" => (
                Kind::Spilled {
                    bytes: option("bytes").unwrap_or(64.0) as usize,
                },
                &["bytes"],
            ),
            "shifted" => (
                Kind::Shifted {
                    bytes: option("bytes").unwrap_or(8.0) as usize,
                },
                &["bytes"],
            ),
            "flipped" => (
                Kind::Flipped {
                    mask: option("mask").unwrap_or(16.0) as u8,
                    every: option("every").unwrap_or(4096.0).max(1.0) as usize,
                },
                &["mask", "every"],
            ),
            "partial" => (
                Kind::Partial {
                    keep: option("keep").unwrap_or(4096.0) as usize,
                    hole: option("hole").unwrap_or(0.0) as usize,
                },
                &["keep", "hole"],
            ),
            "slow" => (
                Kind::Slow {
                    factor: option("factor").unwrap_or(10.0).max(1.0),
                },
                &["factor"],
            ),
            "hang" => (Kind::Hang, &[]),
            "sticky" => (
                Kind::Sticky {
                    code: option("code").unwrap_or(700.0) as u32,
                },
                &["code"],
            ),
            "death" => (Kind::Death, &[]),
            "refusal" => (
                Kind::Refusal {
                    code: option("code").unwrap_or(217.0) as u32,
                },
                &["code"],
            ),
            other => return Err(bad(&format!("no kind `{other}`"))),
        };
        if let Some((key, _)) = numbers.iter().find(|(k, _)| !allowed.contains(k)) {
            return Err(bad(&format!("`{key}` means nothing for this kind")));
        }
        if matches!(kind, Kind::Refusal { .. }) {
            if !matches!(name, "any" | "enable") {
                return Err(bad("refusal goes with `enable` or `any`"));
            }
            mechanisms = vec![Mechanism::Enable];
        } else if mechanisms == [Mechanism::Enable]
            && !matches!(kind, Kind::Death | Kind::Hang | Kind::Sticky { .. })
        {
            return Err(bad("enable can be refused, hang, die or poison"));
        }
        Ok(Fault {
            text: text.to_string(),
            source: ends.0,
            destination: ends.1,
            mechanisms,
            ipc_only,
            kind,
            when,
            min_offset,
            min_bytes,
        })
    }
}

/// A number, decimal or 0x, with an optional Ki or Mi behind it.
fn parse_number(text: &str) -> Option<f64> {
    let (digits, unit) = if let Some(d) = text.strip_suffix("Ki") {
        (d, 1024.0)
    } else if let Some(d) = text.strip_suffix("Mi") {
        (d, 1_048_576.0)
    } else {
        (text, 1.0)
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as f64,
        None => digits
            .parse::<f64>()
            .ok()
            .filter(|v| v.is_finite() && *v >= 0.0)?,
    };
    Some(value * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_documents() {
        let f: Fault = "2>5:ce_push=hang".parse().unwrap();
        assert!(f.concerns(Some(2), Some(5), Mechanism::CePush, false));
        assert!(!f.concerns(Some(5), Some(2), Mechanism::CePush, false));
        assert!(!f.concerns(Some(2), Some(5), Mechanism::CePull, false));
        let f: Fault = "*>*:any=zeroed:nth=3:min_offset=4Mi".parse().unwrap();
        assert_eq!(f.min_offset, 4 << 20);
        assert_eq!(
            (0..6).map(|c| f.strikes(c)).collect::<Vec<_>>(),
            [false, false, true, false, false, true]
        );
        assert!(!f.concerns(Some(1), Some(1), Mechanism::CePush, false));
        assert!(!f.concerns(Some(1), Some(2), Mechanism::Staged, false));
        let f: Fault = "1>host:bounce_d2h=flipped:every=64:mask=0x81:once"
            .parse()
            .unwrap();
        assert_eq!(
            f.kind,
            Kind::Flipped {
                mask: 0x81,
                every: 64
            }
        );
        assert!(
            f.concerns(Some(1), None, Mechanism::BounceD2h, false) && f.strikes(0) && !f.strikes(1)
        );
        let f: Fault = "0>1:ipc.sm_store=dropped".parse().unwrap();
        assert!(
            !f.concerns(Some(0), Some(1), Mechanism::SmStore, false)
                && f.concerns(Some(0), Some(1), Mechanism::SmStore, true)
        );
    }

    #[test]
    fn refuses_with_the_reason() {
        for (text, reason) in [
            ("2>5", "no mechanism"),
            ("25:ce=hang", "no pair"),
            ("a>5:ce=hang", "neither"),
            ("0>1:warp=hang", "no mechanism `warp`"),
            ("0>1:ce=melted", "no kind `melted`"),
            ("0>1:ce=hang:bytes=3", "means nothing"),
            ("0>1:ce=hang:sometimes", "no option"),
            ("0>1:ce=refusal", "goes with"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
