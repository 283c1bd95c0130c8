//! The ways to manage memory, by name: what the command line, the replays, the benchmarks and the suites choose from.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headwater_driver::{DeviceId, Driver};

use crate::binned::BinnedOptions;
use crate::caching::CachingAllocator;
use crate::config::{Backing, Config};
use crate::{AllocError, Allocator, Binned, Direct};

/// A way to manage memory.
///
/// ```
/// use headwater::{Allocator, Policy};
/// use headwater_driver::DeviceId;
///
/// let policy: Policy = "classic".parse()?;
/// let allocator = policy.build(headwater_sim::SimDriver::new(), DeviceId(0), Some(1 << 30))?;
/// assert_eq!(allocator.name(), "classic");
/// assert!("best".parse::<Policy>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
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

    /// A fresh allocator with the policy's own settings, and a limit on its reserved bytes or none.
    ///
    /// # Errors
    /// Where there is no such device, or it cannot do what the policy needs.
    pub fn build(
        self,
        driver: Arc<dyn Driver>,
        device: DeviceId,
        limit_bytes: Option<u64>,
    ) -> Result<Arc<dyn Allocator>, AllocError> {
        Ok(match self {
            Self::Direct => match limit_bytes {
                Some(limit_bytes) => Arc::new(Direct::with_limit(driver, device, limit_bytes)?),
                None => Arc::new(Direct::new(driver, device)?),
            },
            Self::Binned => {
                let options = BinnedOptions { limit_bytes, ..BinnedOptions::default() };
                Arc::new(Binned::with_options(driver, device, options)?)
            }
            Self::Classic => caching(driver, device, Config::pytorch_rules(), limit_bytes)?,
            Self::Paged => {
                caching(driver, device, Config::default().with_backing(Backing::Paged), limit_bytes)?
            }
        })
    }
}

fn caching(
    driver: Arc<dyn Driver>,
    device: DeviceId,
    config: Config,
    limit_bytes: Option<u64>,
) -> Result<Arc<CachingAllocator>, AllocError> {
    let allocator = CachingAllocator::new(driver, device, config)?;
    if limit_bytes.is_some() {
        allocator.set_limit_bytes(limit_bytes);
    }
    Ok(allocator)
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
    fn every_policy_builds_the_allocator_of_its_name() {
        for policy in Policy::ALL {
            let allocator = policy.build(headwater_sim::SimDriver::new(), DeviceId(0), None).unwrap();
            assert_eq!(allocator.name(), policy.name());
        }
    }
}
