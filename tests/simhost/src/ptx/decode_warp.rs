//! Decoding of what lanes do together: barriers, shuffles, votes, matches.

use super::code::{BarrierKind, Kind, Shuffle, Vote};
use super::decode::{Lower, Op, Res};
use super::lanes::NONE;
use super::parse::{Arg, Stmt};
use super::types::Ty;

impl Lower<'_> {
    pub(super) fn warp_op(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        let all = Arg::Int(0xffff_ffff);
        match op.name {
            "bar" | "barrier" => {
                op.take("cta");
                op.take("aligned");
                if op.take("warp") {
                    if !op.take("sync") {
                        return Err(op.unknown());
                    }
                    self.args(st, 1)?;
                    let m = self.src(&st.args[0], Ty::B32)?;
                    self.push(Kind::WarpBarrier, [m, 0, 0, 0, 0, 0]);
                    return Ok(true);
                }
                let kind = match op.take_any(&["sync", "red"]).ok_or_else(|| op.unknown())? {
                    "sync" => BarrierKind::Sync,
                    _ => match op
                        .take_any(&["popc", "and", "or"])
                        .ok_or_else(|| op.unknown())?
                    {
                        "popc" => BarrierKind::Popc,
                        "and" => BarrierKind::And,
                        _ => BarrierKind::Or,
                    },
                };
                let mut args: Vec<&Arg> = st.args.iter().collect();
                let mut o = [NONE; 6];
                if matches!(kind, BarrierKind::Popc | BarrierKind::And | BarrierKind::Or) {
                    if args.len() < 3 || args.len() > 4 {
                        return Err(op.unknown());
                    }
                    let ty = if kind == BarrierKind::Popc {
                        Ty::U32
                    } else {
                        Ty::Pred
                    };
                    if op.ty()? != ty {
                        return Err(op.unknown());
                    }
                    o[2] = self.dst(args.remove(0), ty)?;
                    o[3] = match args.pop() {
                        Some(p) => self.pred(p)?,
                        None => return Err(op.unknown()),
                    };
                } else if !op.tys.is_empty() || args.is_empty() || args.len() > 2 {
                    return Err(op.unknown());
                }
                o[0] = self.src(args[0], Ty::U32)?;
                if let Some(n) = args.get(1) {
                    o[1] = self.src(n, Ty::U32)?;
                }
                self.push(Kind::Barrier(kind), o);
            }
            "shfl" => {
                if !op.take("sync") || op.ty()?.size() != 4 {
                    return Err(op.unknown());
                }
                let mode = match op
                    .take_any(&["up", "down", "bfly", "idx"])
                    .ok_or_else(|| op.unknown())?
                {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Bfly,
                    _ => Shuffle::Idx,
                };
                self.args(st, 5)?;
                let (d, p) = match &st.args[0] {
                    Arg::Pair(d, p) => (self.dst(d, Ty::B32)?, self.dst(p, Ty::Pred)?),
                    d => (self.dst(d, Ty::B32)?, NONE),
                };
                let mut o = [d, p, 0, 0, 0, 0];
                for k in 1..5 {
                    o[k + 1] = self.src(&st.args[k], Ty::B32)?;
                }
                self.push(Kind::Shuffle(mode), o);
            }
            "vote" => {
                let synced = op.take("sync");
                let (vote, ty) = match op
                    .take_any(&["all", "any", "uni", "ballot"])
                    .ok_or_else(|| op.unknown())?
                {
                    "all" => (Vote::All, Ty::Pred),
                    "any" => (Vote::Any, Ty::Pred),
                    "uni" => (Vote::Uni, Ty::Pred),
                    _ => (Vote::Ballot, Ty::B32),
                };
                if !synced || op.ty()? != ty {
                    return Err(op.unknown());
                }
                self.args(st, 3)?;
                let o = [
                    self.dst(&st.args[0], ty)?,
                    self.pred(&st.args[1])?,
                    0,
                    0,
                    0,
                    self.src(st.args.get(2).unwrap_or(&all), Ty::B32)?,
                ];
                self.push(Kind::Vote(vote), o);
            }
            "match" => {
                let ty = op.ty()?;
                if !op.take("any") || !op.take("sync") || !matches!(ty, Ty::B32 | Ty::B64) {
                    return Err(op.unknown());
                }
                self.args(st, 3)?;
                let o = [
                    self.dst(&st.args[0], Ty::B32)?,
                    self.src(&st.args[1], ty)?,
                    0,
                    0,
                    0,
                    self.src(&st.args[2], Ty::B32)?,
                ];
                self.push(Kind::MatchAny(ty.size()), o);
            }
            "activemask" => {
                if op.ty()? != Ty::B32 {
                    return Err(op.unknown());
                }
                self.args(st, 1)?;
                let d = self.dst(&st.args[0], Ty::B32)?;
                self.push(Kind::ActiveMask, [d, 0, 0, 0, 0, 0]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
