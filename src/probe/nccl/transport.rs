//! NCCL's log (NCCL_DEBUG=INFO) read for the transport of every channel and for the settings that it took. What it does not
//! say is not assumed: a log without channels is of an unknown transport.

use std::collections::{BTreeMap, BTreeSet};

/// What a log says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Transports {
    /// Transport as written ("P2P/CUMEM/read"), and how many channels of one direction use it.
    channels: BTreeMap<String, u32>,
    /// Pairs of ranks by the transport's first word.
    pairs: BTreeMap<String, BTreeSet<(u32, u32)>>,
    /// NVLS was connected: its multicast may carry the sum past all channels.
    nvls: bool,
    /// Settings that NCCL says it took: name and value.
    pub(super) settings: Vec<(String, String)>,
}

impl Transports {
    /// Reads more of the log: the ranks of one arm write one each.
    pub(super) fn read(&mut self, log: &str) {
        for line in log.lines() {
            let Some((_, said)) = line.split_once("NCCL INFO ") else {
                continue;
            };
            if let Some((pair, transport)) = channel(said) {
                let word = transport.split('/').next().unwrap_or(transport);
                *self.channels.entry(transport.to_string()).or_default() += 1;
                self.pairs.entry(word.to_string()).or_default().insert(pair);
            } else if let Some(setting) = setting(said) {
                if !self.settings.contains(&setting) {
                    self.settings.push(setting);
                }
            } else if said.starts_with("Connected NVLS") {
                self.nvls = true;
            }
        }
    }

    /// "P2P/CUMEM/read", or several with how many channels each; "unknown" where the log names none.
    pub(super) fn told(&self) -> String {
        let mut parts: Vec<String> = match self.channels.len() {
            0 => return "unknown".to_string(),
            1 => self.channels.keys().cloned().collect(),
            _ => {
                let parts = self.channels.iter();
                parts.map(|(name, n)| format!("{name} x{n}")).collect()
            }
        };
        if self.nvls {
            parts.push("NVLS".to_string());
        }
        parts.join(", ")
    }

    /// Whether some pair of ranks goes through shared host memory.
    pub(super) fn shares_memory(&self) -> bool {
        self.pairs.contains_key("SHM")
    }

    /// Whether some pair of ranks goes peer to peer.
    pub(super) fn is_peer(&self) -> bool {
        self.pairs.contains_key("P2P")
    }

    /// The pairs through shared memory, for a note: "0->1 1->0".
    pub(super) fn shared_pairs(&self) -> String {
        let pairs = self.pairs.get("SHM").into_iter().flatten();
        let words: Vec<String> = pairs.map(|(a, b)| format!("{a}->{b}")).collect();
        words.join(" ")
    }
}

/// `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read`, with or without `[send]`, `[receive]` and what follows the transport. The
/// receiving half of a network channel is the sending half's twin and does not count twice.
fn channel(said: &str) -> Option<((u32, u32), &str)> {
    let rest = said.trim_start().strip_prefix("Channel ")?;
    let (_, ends) = rest.split_once(" : ")?;
    let (ends, via) = ends.split_once(" via ")?;
    if ends.contains("[receive]") {
        return None;
    }
    let (from, to) = ends.split_once(" -> ")?;
    let rank = |end: &str| end.trim().split('[').next()?.trim().parse::<u32>().ok();
    // "P2P/direct pointer/read" is the one transport whose name has a blank.
    let named = match via.strip_prefix("P2P/direct pointer") {
        Some(rest) => via.get(..via.len() - rest.len() + word(rest).len())?,
        None => word(via),
    };
    (!named.is_empty()).then_some(((rank(from)?, rank(to)?), named))
}

fn word(text: &str) -> &str {
    text.split_whitespace()
        .next()
        .filter(|_| !text.starts_with(char::is_whitespace))
        .unwrap_or_default()
}

/// `NCCL_P2P_LEVEL set by environment to SYS.`
fn setting(said: &str) -> Option<(String, String)> {
    let (name, value) = said.split_once(" set by environment to ")?;
    let name = name.trim();
    let whole = name.starts_with("NCCL_") && !name.contains(char::is_whitespace);
    whole.then(|| {
        let value = value.trim().trim_end_matches('.');
        (name.to_string(), value.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str) -> Transports {
        let mut transports = Transports::default();
        transports.read(log);
        transports
    }

    #[test]
    fn peers_over_nvlink() {
        let log = "\
vm:812:812 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
vm:812:840 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
vm:812:840 [0] NCCL INFO Channel 00/24 : 0 1
vm:812:840 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
vm:812:851 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
vm:813:852 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
vm:812:840 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
";
        let transports = read(log);
        assert_eq!(transports.told(), "P2P/CUMEM/read");
        assert!(transports.is_peer() && !transports.shares_memory());
        let settings = [("NCCL_NVLS_ENABLE".to_string(), "0".to_string())];
        assert_eq!(transports.settings, settings);
    }

    #[test]
    fn islands_on_nvlink_and_shared_memory_between_them() {
        let log = "\
h:1:1 [3] NCCL INFO Channel 02 : 3[3] -> 0[0] via SHM/direct/direct
h:1:1 [1] NCCL INFO Channel 02 : 1[1] -> 2[2] via SHM/direct/direct
h:1:1 [2] NCCL INFO Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM/read
h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
";
        let transports = read(log);
        assert_eq!(transports.told(), "P2P/CUMEM/read x3, SHM/direct/direct x2");
        assert_eq!(transports.shared_pairs(), "1->2 3->0");
    }

    #[test]
    fn names_with_blanks_old_forms_and_the_network() {
        let one = |line: &str| read(&format!("h:1:2 [0] NCCL INFO {line}\n")).told();
        let pairs = [
            (
                "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read",
                "P2P/direct pointer/read",
            ),
            (
                "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer",
                "P2P/direct pointer",
            ),
            (
                "Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC comm 0x7f2 nRanks 02",
                "P2P/IPC",
            ),
            (
                "Channel 32 : 1[c3000] -> 0[3000] via SHM/direct/direct comm 0x5575",
                "SHM/direct/direct",
            ),
            (
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
                "NET/Socket/0",
            ),
            (
                "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
                "unknown",
            ),
            ("Channel 00/24 : 0 1", "unknown"),
            ("Ring 00 : 0[0] <- 1[1]", "unknown"),
        ];
        for (line, transport) in pairs {
            assert_eq!(one(line), transport, "{line}");
        }
        let nvls = "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nh:1:2 [0] NCCL INFO Connected NVLS tree\n";
        assert_eq!(read(nvls).told(), "P2P/CUMEM, NVLS");
    }

    #[test]
    fn a_log_that_says_nothing_is_of_an_unknown_transport() {
        let transports =
            read("garbage \u{fffd}\nNCCL WARN Channel 00 : 0[0] -> 1[1] via P2P/IPC\n");
        assert_eq!(transports.told(), "unknown");
        assert!(!transports.is_peer() && !transports.shares_memory());
        assert_eq!(read("").told(), "unknown");
    }
}
