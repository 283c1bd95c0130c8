//! Which spaces would do for a request, and which of them are wanted more.

use std::fmt;

use crate::space::Space;
use crate::tier::{SpaceId, Tier};

/// Where a reservation may be. Whatever the strategy, a request waits for all its candidates at once and takes the most
/// wanted one that has room; among equally wanted ones, the one with the most room.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// This space and no other.
    Specific(SpaceId),
    /// Any space of a tier.
    AnyInTier(Tier),
    /// Any space of a tier, this one first.
    PreferInTier(SpaceId),
    /// Any space of several tiers, the first tier first.
    Tiers(Vec<Tier>),
    /// Where data of `from` can move down to: lower tiers, the nearest first; within a tier the same NUMA node first.
    Downgrade {
        /// Where the data is.
        from: SpaceId,
        /// The only tier that would do; none for all lower ones.
        to: Option<Tier>,
    },
    /// Where data of `from` can move up to: higher tiers, the fastest first; within a tier the same NUMA node first.
    Upgrade {
        /// Where the data is.
        from: SpaceId,
        /// The only tier that would do; none for all higher ones.
        to: Option<Tier>,
    },
}

/// A space and how much it is wanted; smaller is more.
pub(super) type Ranked<'a> = (&'a Space, u8);

impl Strategy {
    /// The candidates among `spaces`.
    pub(super) fn candidates<'a>(&self, spaces: &'a [Space]) -> Vec<Ranked<'a>> {
        match self {
            Self::Specific(id) => ranked(spaces, |space| (space.id() == *id).then_some(0)),
            Self::AnyInTier(tier) => ranked(spaces, |space| (space.tier() == *tier).then_some(0)),
            Self::PreferInTier(id) => {
                ranked(spaces, |space| (space.tier() == id.tier()).then_some(u8::from(space.id() != *id)))
            }
            Self::Tiers(tiers) => ranked(spaces, |space| position(tiers, space.tier())),
            Self::Downgrade { from, to } => {
                let tiers: Vec<_> =
                    from.tier().below().filter(|tier| to.is_none_or(|to| to == *tier)).collect();
                moving(spaces, *from, &tiers)
            }
            Self::Upgrade { from, to } => {
                let tiers: Vec<_> =
                    from.tier().above().filter(|tier| to.is_none_or(|to| to == *tier)).collect();
                moving(spaces, *from, &tiers)
            }
        }
    }
}

fn ranked(spaces: &[Space], rank: impl Fn(&Space) -> Option<u8>) -> Vec<Ranked<'_>> {
    spaces.iter().filter_map(|space| rank(space).map(|rank| (space, rank))).collect()
}

fn position(tiers: &[Tier], tier: Tier) -> Option<u8> {
    // There are three tiers; a tier named twice counts where it is named first.
    tiers.iter().position(|candidate| *candidate == tier).and_then(|position| u8::try_from(position).ok())
}

/// Two ranks a tier: near, then far. A space that does not know its node is near to nothing and far from nothing.
fn moving<'a>(spaces: &'a [Space], from: SpaceId, tiers: &[Tier]) -> Vec<Ranked<'a>> {
    let home = spaces.iter().find(|space| space.id() == from).and_then(Space::numa_node);
    ranked(spaces, |space| {
        let is_far = matches!((home, space.numa_node()), (Some(home), Some(node)) if home != node);
        position(tiers, space.tier()).map(|rank| rank * 2 + u8::from(is_far))
    })
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Specific(id) => write!(f, "exactly {id}"),
            Self::AnyInTier(tier) => write!(f, "any {tier}"),
            Self::PreferInTier(id) => write!(f, "any {}, {id} first", id.tier()),
            Self::Tiers(tiers) => {
                f.write_str("any of ")?;
                for (index, tier) in tiers.iter().enumerate() {
                    write!(f, "{}{tier}", if index > 0 { ", then " } else { "" })?;
                }
                Ok(())
            }
            Self::Downgrade { from, to: None } => write!(f, "down from {from}"),
            Self::Downgrade { from, to: Some(to) } => write!(f, "down from {from} to {to}"),
            Self::Upgrade { from, to: None } => write!(f, "up from {from}"),
            Self::Upgrade { from, to: Some(to) } => write!(f, "up from {from} to {to}"),
        }
    }
}
