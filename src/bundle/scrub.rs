//! Replaces what identifies a host, a person or a card by placeholders. Within one run a value always gets the same one, so
//! that lines can still be joined; the salt of the run keeps a placeholder from being undone by trying all host names.
//!
//! What is replaced: values that the caller knows, wherever they stand, and whatever has the form of an address, a UUID, a
//! serial number or a user's folder. PCI addresses, product names and versions stay. Too much is replaced rather than too
//! little: a version of four small numbers looks like an IPv4 address and goes.

use super::{manifest::Replaced, marks};
use crate::model::report::SCRUBBED;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Host name, whole or first label, and the host of a URL.
    Host,
    /// User name.
    User,
    /// user@host.
    Account,
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// Hardware address of a network adapter; GUID of an InfiniBand port; PCI device serial number.
    Hardware,
    /// UUID of a GPU, disk, machine or fabric.
    Uuid,
    /// Serial number or asset tag.
    Serial,
}

impl Kind {
    /// In placeholders and lists.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::User => "user",
            Kind::Account => "account",
            Kind::Ipv4 => "ipv4",
            Kind::Ipv6 => "ipv6",
            Kind::Hardware => "hardware-address",
            Kind::Uuid => "uuid",
            Kind::Serial => "serial",
        }
    }
}

/// Account names that distributions and images give to everybody: as words of a text they are mostly something else.
const EVERYBODY: [&str; 20] = [
    "root",
    "user",
    "admin",
    "ubuntu",
    "debian",
    "centos",
    "fedora",
    "rocky",
    "ec2-user",
    "azureuser",
    "nvidia",
    "cuda",
    "gpu",
    "docker",
    "kernel",
    "test",
    "default",
    "service",
    "nobody",
    "localhost",
];

/// Words that firmware writes where a serial number should be.
const PLACEHOLDERS: [&str; 9] = [
    "none",
    "unknown",
    "default string",
    "not specified",
    "to be filled by o.e.m.",
    "system serial number",
    "not applicable",
    "0123456789",
    "empty",
];

/// Replaces values and counts what it replaced.
#[derive(Debug)]
pub struct Scrubber {
    salt: [u8; 16],
    /// Lower-case text to its kind and the value whose placeholder it gets.
    known: BTreeMap<String, (Kind, String)>,
    seen: BTreeMap<Kind, (BTreeSet<String>, u64)>,
}

impl Scrubber {
    /// With the salt of this run, which must be random and is not kept.
    pub fn new(salt: [u8; 16]) -> Scrubber {
        Scrubber {
            salt,
            known: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Tells of a value that identifies, to be replaced wherever it stands as a word.
    pub fn know(&mut self, kind: Kind, value: &str) {
        let value = value.trim().to_ascii_lowercase();
        let everybody =
            matches!(kind, Kind::Host | Kind::User) && EVERYBODY.contains(&value.as_str());
        let blank = value
            .chars()
            .all(|c| matches!(c, '0' | '-' | ':' | '.' | ' '));
        // One or two letters would take half of every text with them.
        if value.len() < 3
            || blank
            || everybody
            || value.contains(SCRUBBED)
            || PLACEHOLDERS.contains(&value.as_str())
        {
            return;
        }
        if kind == Kind::Host
            && let Some((label, _)) = value.split_once('.')
            && label.len() >= 3
            && !EVERYBODY.contains(&label)
            && !label.bytes().all(|b| b.is_ascii_digit())
        {
            // The short name and the whole one are one host.
            let label = label.to_string();
            self.known.insert(label.clone(), (kind, label.clone()));
            self.known.insert(value, (kind, label));
            return;
        }
        self.known.entry(value.clone()).or_insert((kind, value));
    }

    /// Learns names from a text before anything is replaced: users by their folders, hosts by the lines that their
    /// programs and kernels begin with.
    pub fn learn(&mut self, text: &str) {
        for (kind, value) in marks::names(&text.to_ascii_lowercase()) {
            self.know(kind, &value);
        }
    }

    /// As [`Scrubber::learn`], from all texts of a document.
    pub fn learn_json(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.learn(text),
            Value::Array(list) => list.iter().for_each(|one| self.learn_json(one)),
            Value::Object(map) => map.values().for_each(|one| self.learn_json(one)),
            _ => {}
        }
    }

    /// A text with placeholders.
    pub fn text(&mut self, text: &str) -> String {
        let lower = text.to_ascii_lowercase();
        let mut found = marks::forms(&lower);
        for (value, (kind, canonical)) in &self.known {
            for start in marks::standing(&lower, value) {
                let mut end = start + value.len();
                if *kind == Kind::Host {
                    end += marks::domain(&lower, end);
                }
                found.push(marks::Mark {
                    start,
                    end,
                    kind: *kind,
                    value: canonical.clone(),
                });
            }
        }
        if found.is_empty() {
            return text.to_string();
        }
        // The first and longest of those that overlap speaks for all of them.
        found.sort_by_key(|mark| (mark.start, std::cmp::Reverse(mark.end)));
        let mut out = String::with_capacity(text.len() + 32);
        let mut done = 0;
        let mut marks = found.into_iter().peekable();
        while let Some(mut mark) = marks.next() {
            while let Some(next) = marks.next_if(|next| next.start < mark.end) {
                mark.end = mark.end.max(next.end);
            }
            let (Some(before), Some(_)) = (text.get(done..mark.start), text.get(..mark.end)) else {
                continue;
            };
            out.push_str(before);
            out.push_str(&self.placeholder(mark.kind, &mark.value));
            done = mark.end;
        }
        out.push_str(text.get(done..).unwrap_or_default());
        out
    }

    /// Every text of a document. Names of fields are ours and stay.
    pub fn json(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|one| self.json(one)),
            Value::Object(map) => {
                for (name, one) in map {
                    match one {
                        // A UUID without hyphens: in any other place 32 digits are test data.
                        Value::String(text)
                            if name == "cluster" && text.chars().any(|c| c != '0' && c != '-') =>
                        {
                            let lower = text.to_ascii_lowercase();
                            *text = match lower.contains(SCRUBBED) {
                                true => lower,
                                false => self.placeholder(Kind::Uuid, &lower),
                            };
                        }
                        other => self.json(other),
                    }
                }
            }
            _ => {}
        }
    }

    /// "scrubbed-host-3f1c09ab27".
    pub fn placeholder(&mut self, kind: Kind, value: &str) -> String {
        let hash = Sha256::new()
            .chain_update(self.salt)
            .chain_update(kind.name())
            .chain_update([0])
            .chain_update(value)
            .finalize();
        let digits: String = hash.iter().take(5).map(|b| format!("{b:02x}")).collect();
        let (values, places) = self.seen.entry(kind).or_default();
        values.insert(digits.clone());
        *places += 1;
        format!("{SCRUBBED}{}-{digits}", kind.name())
    }

    /// What was replaced so far, by kind.
    pub fn counts(&self) -> BTreeMap<String, Replaced> {
        let count = |(kind, (values, places)): (&Kind, &(BTreeSet<String>, u64))| {
            let replaced = Replaced {
                values: values.len() as u64,
                places: *places,
            };
            (kind.name().to_string(), replaced)
        };
        self.seen.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scrubber() -> Scrubber {
        let mut scrubber = Scrubber::new([7; 16]);
        scrubber.know(Kind::Host, "gpu-node-7.corp.example");
        scrubber.know(Kind::User, "alice");
        scrubber.know(Kind::Serial, "PF3XK21");
        scrubber
    }

    fn scrubbed(text: &str) -> String {
        scrubber().text(text)
    }

    #[test]
    fn what_identifies_goes() {
        for (text, secret, kind) in [
            ("host gpu-node-7 is up", "gpu-node-7", "host"),
            ("GPU-NODE-7.corp.example:22", "corp", "host"),
            ("peerproof-gpu-node-7-20260102.json", "gpu-node-7", "host"),
            ("gpu-node-7.other.example is up", "other", "host"),
            ("run by alice.", "alice", "user"),
            ("/home/bob/report.json", "bob", "user"),
            ("--out=/export/home/bob.k/x", "bob", "user"),
            (
                "BOOT_IMAGE=/x root=UUID=0a1b2c3d-1111-2222-3333-444455556666 ro",
                "0a1b2c3d",
                "uuid",
            ),
            ("root=UUID=1A2B-3C4D", "1A2B", "uuid"),
            (
                "CUDA_VISIBLE_DEVICES=GPU-5eed0001,GPU-abcd1234",
                "5eed",
                "uuid",
            ),
            ("GPU-5eed0000-0000-0000-0000-000000000001", "5eed", "uuid"),
            ("ip=10.1.2.3::10.1.2.1:255.255.255.0", "10.1.2", "ipv4"),
            ("VLLM_HOST_IP=192.168.7.9", "192.168", "ipv4"),
            ("name ip-10-1-2-3", "10-1-2-3", "ipv4"),
            ("NCCL via fe80::3:1%eth0", "fe80", "ipv6"),
            ("[2001:db8:0:1:2:3:4:5]:8000", "2001", "ipv6"),
            ("eth0 aa:bb:cc:00:11:22 up", "aa:bb", "hardware-address"),
            ("enxaabbcc001122", "aabbcc", "hardware-address"),
            (
                "Device Serial Number 98-03-9b-ff-ff-00-12-34",
                "98-03",
                "hardware-address",
            ),
            ("node_guid 506b:4b03:00f4:1234", "506b", "hardware-address"),
            ("port guid 0x506b4b0300f41234", "506b", "hardware-address"),
            ("Serial Number : 1322621045678", "1322", "serial"),
            ("board_serial=XY-99/12", "XY-99", "serial"),
            (
                "<info name=\"DMIProductSerial\" value=\"ZZ12345\"/>",
                "ZZ12345",
                "serial",
            ),
            ("pf3xk21 in the rack", "pf3xk21", "serial"),
            ("http://proxy.corp.example:3128/x", "proxy", "host"),
            ("carol@build3:~$", "carol", "account"),
            ("worker-3:1234:1250 [0] NCCL INFO x", "worker-3", "host"),
            (
                "Nov 30 01:02:03 worker-3 kernel: NVRM: Xid",
                "worker-3",
                "host",
            ),
            ("systemd.hostname=worker-3 ro", "worker-3", "host"),
        ] {
            let out = scrubbed(text);
            assert!(!out.contains(secret), "{text}: {out}");
            assert!(out.contains(&format!("scrubbed-{kind}-")), "{text}: {out}");
        }
    }

    #[test]
    fn what_helps_stays() {
        for text in [
            "0000:17:00.0",
            "00000000:17:00.0 and 17:00.0, chain 0000:15:01.0 0000:16:00.0",
            "[   61.514090] NVRM: Xid (PCI:0000:17:00): 31, pid=1234",
            "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x8a000000000 flags=0x0030]",
            "DMAR: [DMA Write NO_PASID] Request device [17:00.0] fault addr 0xffff",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "580.159.04, CUDA 13.0, NVML 13.580.95.05, 6.8.0-60-generic",
            "Ubuntu 24.04.2 LTS",
            "9f3c6a1e00000000d2b4770155aa03c1",
            "std::fs::read and crate::model",
            "2026-01-02T03:04:05Z",
            "0-31,64-95",
            "console=ttyS0,115200 serial8250",
            "127.0.0.1 0.0.0.0 255.255.255.0 ::1",
            "0->1 ce-push: zeroed in 3 of 3 attempts",
            "https://docs.nvidia.com/deploy/xid-errors/index.html",
            "scrubbed-host-0011223344",
        ] {
            assert_eq!(scrubbed(text), text);
        }
    }

    #[test]
    fn a_value_has_one_placeholder_in_a_run_and_another_in_the_next() {
        let mut one = scrubber();
        let first = one.text("GPU-NODE-7");
        assert_eq!(first, one.text("gpu-node-7.corp.example"));
        assert_eq!(
            one.counts()["host"],
            Replaced {
                values: 1,
                places: 2
            }
        );
        let mut other = Scrubber::new([8; 16]);
        other.know(Kind::Host, "gpu-node-7");
        assert_ne!(first, other.text("gpu-node-7"));
    }

    #[test]
    fn a_name_that_was_seen_once_goes_everywhere() {
        let mut scrubber = scrubber();
        scrubber.learn("/home/dorothea/x");
        scrubber.learn("/home/ubuntu/x");
        scrubber.learn("worker-3:1234:1250 [0] NCCL INFO x");
        assert!(
            !scrubber
                .text("started by dorothea on worker-3")
                .contains("dorothea")
        );
        assert!(
            !scrubber
                .text("started by dorothea on worker-3")
                .contains("worker")
        );
        assert_eq!(scrubber.text("Ubuntu 24.04"), "Ubuntu 24.04");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_twice_is_once(text in "(?s).{0,200}") {
            let once = scrubbed(&text);
            prop_assert_eq!(scrubbed(&once), once);
        }

        #[test]
        fn texts_of_addresses_do_not_panic(text in "[0-9a-f:.@/ =A-Zé-]{0,120}") {
            let _ = scrubbed(&text);
        }
    }
}
