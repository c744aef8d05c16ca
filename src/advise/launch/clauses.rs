//! Clauses of profiles, held against one launch: what it says, and what its text leaves open.

use super::{
    read::{Invocation, plain},
    traps::Facts,
};
use crate::profile::Clause;

/// A clause that something in the launch meets, not its absence.
pub(super) fn is_asked_for(clause: &Clause) -> bool {
    !matches!(
        clause,
        Clause::NoFlag(_) | Clause::NoVariable(_) | Clause::TpAbove(_) | Clause::RanksAbove(_)
    )
}

/// A clause about what is missing, which a part of the launch that was not read may hold.
pub(super) fn may_be_undone(clause: &Clause, invocation: &Invocation) -> bool {
    match clause {
        Clause::NoFlag(_) => invocation.may_hold_flags(),
        Clause::NoVariable(name) => invocation.may_hold(name),
        _ => false,
    }
}

/// A clause about a flag or variable that may stand in what was not read.
pub(super) fn may_be_met(clause: &Clause, invocation: &Invocation) -> bool {
    match clause {
        Clause::Variable(name) => invocation.may_hold(name),
        Clause::VariableIs(named)
        | Clause::VariableIsNot(named)
        | Clause::VariableContains(named)
        | Clause::VariableLacks(named) => invocation.may_hold(&named.name),
        Clause::AnyVariableIs(all) => all.iter().any(|named| invocation.may_hold(&named.name)),
        Clause::Flag(_) | Clause::FlagIs(_) | Clause::FlagIsNot(_) => invocation.may_hold_flags(),
        _ => false,
    }
}

/// Bytes that NCCL takes in /dev/shm where `ranks` go through the host: a segment for each channel of each rank. Two to four
/// channels are what it was seen to take there at least.
fn segments(ranks: u32) -> u64 {
    const SEGMENT: u64 = 9_637_888;
    const CHANNELS: u64 = 4;
    u64::from(ranks) * CHANNELS * SEGMENT
}

/// Whether the launch meets the clause.
pub(super) fn holds(clause: &Clause, invocation: &Invocation, facts: &Facts) -> bool {
    let value_is = |value: &str, values: &[String]| values.iter().any(|v| v == value);
    // A key of its JSON object by itself gives a flag, too.
    let gives = |names: &[String]| {
        let head = |name: &str| name.split('.').next().unwrap_or_default().to_string();
        invocation.flag(names).is_some()
            || invocation
                .flags
                .iter()
                .any(|f| names.iter().any(|n| plain(n) == head(&f.name)))
    };
    // What a variable is that is not known meets no clause about it: that it is not known is said.
    let open = |name: &String| invocation.unknown.contains_key(name);
    match clause {
        Clause::Variable(name) | Clause::NoVariable(name) if open(name) => false,
        Clause::VariableIs(named)
        | Clause::VariableIsNot(named)
        | Clause::VariableContains(named)
        | Clause::VariableLacks(named)
            if open(&named.name) =>
        {
            false
        }
        Clause::Flag(names) => gives(names),
        Clause::NoFlag(names) => !gives(names),
        Clause::FlagIs(named) => invocation
            .value(std::slice::from_ref(&named.name))
            .is_some_and(|v| value_is(v, &named.values)),
        Clause::FlagIsNot(named) => invocation
            .value(std::slice::from_ref(&named.name))
            .is_some_and(|v| !value_is(v, &named.values)),
        Clause::Variable(name) => invocation.variables.contains_key(name),
        Clause::NoVariable(name) => !invocation.variables.contains_key(name),
        Clause::VariableIs(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| value_is(v, &named.values)),
        Clause::VariableIsNot(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| !value_is(v, &named.values)),
        Clause::AnyVariableIs(all) => all.iter().any(|named| {
            let value = invocation.variables.get(&named.name);
            !open(&named.name) && value.is_some_and(|v| value_is(v, &named.values))
        }),
        Clause::VariableLacks(named) => invocation
            .variables
            .get(&named.name)
            // "^" in front means all but these.
            .is_some_and(|v| {
                !v.starts_with('^')
                    && !v
                        .split(',')
                        .any(|i| named.values.iter().any(|n| n == i.trim()))
            }),
        Clause::VariableContains(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| named.values.iter().any(|part| v.contains(part))),
        Clause::TpAbove(limit) => facts.tp > *limit || (*limit == 1 && facts.group_open),
        Clause::RanksAbove(limit) => facts.exchanging > *limit || (*limit == 1 && facts.ranks_open),
        Clause::MoreThanTensorParallel(wanted) => {
            (facts.data_parallel > 1 || facts.expert_parallel > 1) == *wanted
        }
        Clause::ReplicasShareExperts(wanted) => facts.replicas_share_experts == *wanted,
        Clause::ExpertParallel(wanted) => (facts.expert_parallel > 1) == *wanted,
        Clause::IsolatedSharedMemory(wanted) => {
            let small = invocation
                .shared_memory
                .is_some_and(|bytes| bytes < segments(facts.exchanging));
            facts.exchanging > 1 && (invocation.isolated_shared_memory || small) == *wanted
        }
    }
}
