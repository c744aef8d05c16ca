//! The cells: kind of fault x mechanism x place in the transfer x spread over pairs; which of them cannot exist and why; and
//! what each must be called.

use peerproof::model::case::WrongKind;

/// What a fault must be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Wrong data of this kind, or `Partial` that says so where only a part of the transfer is hit.
    Wrong(WrongKind),
    /// Not finished at the deadline, or a resident kernel that gave up.
    Hang,
    /// A driver error.
    Fault,
    /// A dead worker.
    Died,
}

/// A kind of fault below the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// As the simulated host names it, with options.
    pub(crate) fault: &'static str,
    /// What must be said.
    pub(crate) expect: Expect,
    /// Whether it can be confined to a part of the transfer.
    pub(crate) placed: bool,
}

const fn wrong(fault: &'static str, kind: WrongKind, placed: bool) -> Kind {
    Kind {
        fault,
        expect: Expect::Wrong(kind),
        placed,
    }
}

/// Wrong data, then what ends otherwise.
pub(crate) const KINDS: &[Kind] = &[
    wrong("zeroed", WrongKind::Zeroed, true),
    wrong("ones", WrongKind::Ones, true),
    wrong("dropped", WrongKind::Dropped, true),
    wrong("mirrored", WrongKind::Mirrored, true),
    wrong("stale", WrongKind::Stale, false),
    wrong("misrouted", WrongKind::Misrouted, false),
    wrong("spilled", WrongKind::Spilled, false),
    wrong("shifted:bytes=32", WrongKind::Shifted, false),
    wrong("flipped:every=64", WrongKind::Flipped, true),
    wrong("partial:keep=40Ki", WrongKind::Partial, false),
    wrong("late", WrongKind::Late, false),
    Kind {
        fault: "hang",
        expect: Expect::Hang,
        placed: false,
    },
    Kind {
        fault: "lost_flag",
        expect: Expect::Hang,
        placed: false,
    },
    Kind {
        fault: "sticky",
        expect: Expect::Fault,
        placed: false,
    },
    Kind {
        fault: "death",
        expect: Expect::Died,
        placed: false,
    },
];

/// How a mechanism touches memory that is not the executor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Writes the destination: the writer has a view of its own.
    Writes,
    /// Reads the source: what it wrote is its own memory.
    Reads,
    /// The driver or the host carries it; nobody has a window.
    Staged,
    /// Stores payload and flag while both kernels stay resident.
    Resident,
    /// Read-modify-write at the destination.
    Atomic,
}

/// A mechanism and what it is below the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Mechanism id.
    pub(crate) mechanism: &'static str,
    /// As the simulated host names it.
    pub(crate) fault: &'static str,
    /// How.
    pub(crate) touch: Touch,
}

impl Way {
    /// Mechanisms that go the same way below the driver: a fault of one strikes the others, too.
    pub(crate) fn family(&self) -> &'static str {
        match self.mechanism {
            "sm-store" | "sm-store4" | "resident" => "stores",
            "atomics" | "atomics-contended" => "atomics",
            "ipc-sm-store" | "ipc-resident" => "stores over IPC",
            other => other,
        }
    }
}

const fn way(mechanism: &'static str, fault: &'static str, touch: Touch) -> Way {
    Way {
        mechanism,
        fault,
        touch,
    }
}

/// Every pair mechanism that a fault on one ordered pair can hit. `bounce` and `host-exchange` go through each GPU's own host
/// link: their faults are found by the tests of single GPUs, and are cells of their own there.
pub(crate) const WAYS: &[Way] = &[
    way("staged", "staged", Touch::Staged),
    way("ce-push", "plain.ce_push", Touch::Writes),
    way("ce-pull", "plain.ce_pull", Touch::Reads),
    way("pool-ce-push", "pool.ce_push", Touch::Writes),
    way("pool-ce-pull", "pool.ce_pull", Touch::Reads),
    way("sm-load", "plain.sm_load", Touch::Reads),
    way("sm-store", "plain.sm_store16", Touch::Writes),
    way("sm-store4", "plain.sm_store4", Touch::Writes),
    way("atomics", "plain.atomic", Touch::Atomic),
    way("atomics-contended", "plain.atomic", Touch::Atomic),
    way("pool-sm-load", "pool.sm_load", Touch::Reads),
    way("pool-sm-store", "pool.sm_store", Touch::Writes),
    way("ipc-ce-push", "ipc.ce_push", Touch::Writes),
    way("ipc-ce-pull", "ipc.ce_pull", Touch::Reads),
    way("ipc-sm-load", "ipc.sm_load", Touch::Reads),
    way("ipc-sm-store", "ipc.sm_store", Touch::Writes),
    way("vmm-ce-push", "vmm.ce_push", Touch::Writes),
    way("vmm-sm-load", "vmm.sm_load", Touch::Reads),
    way("vmm-sm-store", "vmm.sm_store", Touch::Writes),
    way("resident", "plain.sm_store", Touch::Resident),
    way("ipc-resident", "ipc.sm_store", Touch::Resident),
];

/// Which bytes of a transfer are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first part.
    First,
    /// A part in the middle.
    Middle,
    /// The last part.
    Last,
}

/// Which ordered pairs are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// One ordered pair.
    OneDirection,
    /// Both directions of one pair.
    OnePair,
    /// All of them.
    AllPairs,
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) kind: Kind,
    pub(crate) way: Way,
    pub(crate) place: Option<Place>,
    pub(crate) spread: Spread,
}

impl Cell {
    /// In one line.
    pub(crate) fn name(&self) -> String {
        let place = self
            .place
            .map_or("whole".to_string(), |p| format!("{p:?}").to_lowercase());
        format!(
            "{} x {} x {place} x {:?}",
            self.kind.fault, self.way.mechanism, self.spread
        )
    }

    /// Why no such fault exists, if so.
    pub(crate) fn impossible(&self) -> Option<&'static str> {
        let touch = self.way.touch;
        match self.kind.expect {
            Expect::Wrong(WrongKind::Mirrored) if touch == Touch::Staged => {
                Some("a staged copy gives nobody a window into another's memory")
            }
            Expect::Wrong(WrongKind::Mirrored) if touch == Touch::Reads => {
                Some("a reader's target is its own memory: there is no window to look through")
            }
            Expect::Wrong(WrongKind::Spilled) if touch == Touch::Reads => Some(
                "what a reader writes lies in its own memory: spilling there is no fault of the path",
            ),
            Expect::Wrong(WrongKind::Spilled) if touch == Touch::Atomic => {
                Some("an atomic is one word: nothing of it lies outside")
            }
            Expect::Wrong(WrongKind::Mirrored) if touch == Touch::Atomic => Some(
                "an atomic is carried out at its owner: there is no copy of the writer to look at",
            ),
            Expect::Wrong(WrongKind::Dropped | WrongKind::Misrouted)
                if touch == Touch::Reads && self.way.mechanism.ends_with("sm-load") =>
            {
                Some(
                    "a load always brings something: a lost one brings ones, and whose words another brings is not modelled",
                )
            }
            Expect::Wrong(WrongKind::Stale)
                if touch == Touch::Reads && self.way.mechanism.ends_with("sm-load") =>
            {
                Some(
                    "a load of older words needs an older load of the same place: with one attempt a size there is none",
                )
            }
            Expect::Wrong(WrongKind::Partial) if touch == Touch::Resident => {
                Some("a resident kernel's slots are shorter than the part that arrives")
            }
            Expect::Wrong(WrongKind::Partial) if touch == Touch::Atomic => {
                Some("transfers by atomics are shorter than the part that arrives")
            }
            Expect::Wrong(WrongKind::Late) if touch != Touch::Resident => {
                Some("only a flag that announces a payload can overtake it")
            }
            Expect::Hang if self.kind.fault == "lost_flag" && touch != Touch::Resident => {
                Some("only a resident kernel waits for a flag")
            }
            _ => None,
        }
    }
}

/// All cells that can exist, and those that cannot with the reason.
pub(crate) fn all() -> (Vec<Cell>, Vec<(Cell, &'static str)>) {
    let (mut possible, mut not) = (Vec::new(), Vec::new());
    for way in WAYS {
        for kind in KINDS {
            // A resident kernel's slots are shorter than any part.
            let places: &[Option<Place>] = if kind.placed && way.touch != Touch::Resident {
                &[Some(Place::First), Some(Place::Middle), Some(Place::Last)]
            } else {
                &[None]
            };
            for place in places {
                for spread in [Spread::OneDirection, Spread::OnePair, Spread::AllPairs] {
                    let cell = Cell {
                        kind: *kind,
                        way: *way,
                        place: *place,
                        spread,
                    };
                    match cell.impossible() {
                        Some(why) => not.push((cell, why)),
                        None => possible.push(cell),
                    }
                }
            }
        }
    }
    (possible, not)
}
