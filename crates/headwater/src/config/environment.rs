//! Settings from the environment. The only place of this module that looks outside.

use std::ffi::OsString;

use super::Config;
use super::error::{ConfigError, Origin};

/// The variables that settings are read from, first choice first. Only the first that is set is read.
///
/// PyTorch's own order is kept: where both are set, `PYTORCH_CUDA_ALLOC_CONF` wins.
pub const VARIABLES: [&str; 4] =
    ["HEADWATER_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYXSIGMA_CUDA_ALLOC_CONF"];

impl Config {
    /// The configuration that this process's environment asks for; the defaults where it asks for none.
    ///
    /// # Errors
    /// Every [`ConfigError`]; it names the variable.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(std::env::var_os)
    }

    /// As [`from_env`](Self::from_env), with `lookup` in place of the environment.
    ///
    /// ```
    /// use headwater::config::{Config, Key, Origin};
    /// let config = Config::from_lookup(|name| match name {
    ///     "PYTORCH_CUDA_ALLOC_CONF" => Some("garbage_collection_threshold:0.8"),
    ///     "PYTORCH_ALLOC_CONF" => Some("this one is not read"),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.garbage_collection_threshold(), Some(0.8));
    /// assert_eq!(config.origin(Key::GarbageCollectionThreshold), Origin::Variable("PYTORCH_CUDA_ALLOC_CONF"));
    /// # Ok::<(), headwater::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Every [`ConfigError`]; it names the variable.
    pub fn from_lookup<T: Into<OsString>>(
        mut lookup: impl FnMut(&'static str) -> Option<T>,
    ) -> Result<Self, ConfigError> {
        for variable in VARIABLES {
            if let Some(text) = lookup(variable) {
                let text = text.into().into_string().map_err(|text| ConfigError::NotUnicode {
                    variable,
                    lossy: text.to_string_lossy().into_owned(),
                })?;
                return Self::parse_from(&text, Origin::Variable(variable));
            }
        }
        Ok(Self::default())
    }
}
