//! The policies a replay can use, and how their allocators are made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headwater::binned::BinnedOptions;
use headwater::caching::CachingAllocator;
use headwater::config::{Backing, Config};
use headwater::{AllocError, Allocator, Binned, Direct, Opened};

use super::error::ReplayError;

/// A way to manage memory, by the names of the command line.
///
/// ```
/// use headwater_trace::replay::Policy;
/// assert_eq!("classic".parse(), Ok(Policy::Classic));
/// assert!("best".parse::<Policy>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Every request is a driver call.
    Direct,
    /// Blocks of fixed sizes, each size from a cache of its own.
    Binned,
    /// PyTorch's rules, exactly.
    Classic,
    /// One arena of addresses, pages mapped into it on demand.
    Paged,
}

/// A policy that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: use direct, binned, classic or paged")]
pub struct UnknownPolicy(String);

impl Policy {
    /// All policies, in the order they are shown.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Binned, Self::Classic, Self::Paged];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Binned => "binned",
            Self::Classic => "classic",
            Self::Paged => "paged",
        }
    }

    /// Whether this version can replay with it.
    pub fn is_available(self) -> bool {
        self.maker().is_some()
    }

    /// The policies that this version can replay with.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|policy| policy.is_available()).collect()
    }

    /// The one place that knows how each policy's allocator is made.
    fn maker(self) -> Option<Maker> {
        match self {
            Self::Direct => Some(direct),
            Self::Binned => Some(binned),
            Self::Classic => Some(classic),
            Self::Paged => Some(paged),
        }
    }

    /// A fresh allocator on a device, with a limit on its reserved bytes or without.
    pub(super) fn make(
        self,
        on: &Opened,
        limit_bytes: Option<u64>,
    ) -> Result<Arc<dyn Allocator>, ReplayError> {
        let make = self.maker().ok_or(ReplayError::NotAvailable { policy: self })?;
        make(on, limit_bytes).map_err(|error| ReplayError::Allocator { policy: self, event: 0, error })
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

type Made = Result<Arc<dyn Allocator>, AllocError>;
type Maker = fn(&Opened, Option<u64>) -> Made;

fn direct(on: &Opened, limit_bytes: Option<u64>) -> Made {
    let driver = Arc::clone(&on.driver);
    Ok(Arc::new(match limit_bytes {
        Some(limit_bytes) => Direct::with_limit(driver, on.device, limit_bytes)?,
        None => Direct::new(driver, on.device)?,
    }))
}

fn binned(on: &Opened, limit_bytes: Option<u64>) -> Made {
    let options = BinnedOptions { limit_bytes, ..BinnedOptions::default() };
    Ok(Arc::new(Binned::with_options(Arc::clone(&on.driver), on.device, options)?))
}

fn classic(on: &Opened, limit_bytes: Option<u64>) -> Made {
    caching(on, limit_bytes, Config::pytorch_rules())
}

fn paged(on: &Opened, limit_bytes: Option<u64>) -> Made {
    // Legal in itself: no other setting contradicts it.
    let config = Config::builder().backing(Backing::Paged).build().unwrap_or_default();
    caching(on, limit_bytes, config)
}

fn caching(on: &Opened, limit_bytes: Option<u64>, config: Config) -> Made {
    let allocator = CachingAllocator::new(Arc::clone(&on.driver), on.device, config)?;
    if limit_bytes.is_some() {
        allocator.set_limit_bytes(limit_bytes);
    }
    Ok(allocator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back_as_they_are_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "Classic".parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains("`Classic`") && error.contains("paged"), "{error}");
    }

    #[test]
    fn a_policy_that_does_not_exist_yet_says_which_do() {
        let on = headwater::open(headwater::DeviceChoice::Sim).unwrap();
        for policy in Policy::ALL {
            match policy.make(&on, None) {
                Ok(allocator) => assert_eq!(allocator.name(), policy.name()),
                Err(error) => {
                    assert!(!policy.is_available());
                    assert!(error.to_string().contains("classic"), "{error}");
                }
            }
        }
    }
}
