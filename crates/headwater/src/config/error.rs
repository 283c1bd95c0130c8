//! What can be wrong with a configuration. An error says which setting, what was given, what is legal and where it
//! came from.

use std::borrow::Cow;
use std::fmt;

/// Where a setting came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// The program itself: the builder, or a settings string it passed.
    Code,
    /// This environment variable.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Code => "the program's settings",
            Self::Variable(name) => name,
        })
    }
}

/// A configuration that was refused. Nothing of it is in force.
///
/// ```
/// use headwater::config::Config;
/// let refused = Config::from_lookup(|name| (name == "HEADWATER_ALLOC_CONF").then_some("max_splt_size_mb:64"));
/// assert_eq!(
///     refused.unwrap_err().to_string(),
///     "unknown key `max_splt_size_mb` in HEADWATER_ALLOC_CONF; did you mean max_split_size_mb?"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this name.
    #[error("unknown key `{key}` in {origin}{}", Suggestion(*.suggestion))]
    UnknownKey {
        /// What was written.
        key: String,
        /// The setting whose name is closest, where one is close.
        suggestion: Option<&'static str>,
        /// Where it was written.
        origin: Origin,
    },
    /// A value that is no value of this setting, or out of its range.
    #[error("bad value `{value}` for {key} in {origin}: legal is {legal}")]
    BadValue {
        /// The setting.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would have been legal.
        legal: Cow<'static, str>,
        /// Where it was given.
        origin: Origin,
    },
    /// A value that PyTorch knows and Headwater does not offer.
    #[error("{key}:{value} in {origin} is not supported: {instead}")]
    Unsupported {
        /// The setting.
        key: &'static str,
        /// What was given.
        value: String,
        /// What to use instead.
        instead: &'static str,
        /// Where it was given.
        origin: Origin,
    },
    /// Two settings that contradict each other.
    #[error("{first} contradicts {second} in {origin}: keep one of them")]
    Conflict {
        /// One of them, as `key:value`.
        first: String,
        /// The other.
        second: String,
        /// Where the later one was given.
        origin: Origin,
    },
    /// Text that is no list of `key:value`.
    #[error("{origin} cannot be read at character {position}: expected {expected}, found {found}")]
    Malformed {
        /// Where reading stopped, counted in characters from 1.
        position: usize,
        /// What would have been legal there.
        expected: &'static str,
        /// What was there.
        found: String,
        /// Where the text came from.
        origin: Origin,
    },
    /// An environment variable that holds no Unicode text.
    #[error("{variable} is not valid Unicode: `{lossy}`")]
    NotUnicode {
        /// The variable.
        variable: &'static str,
        /// Its value, with what cannot be read replaced.
        lossy: String,
    },
}

struct Suggestion(Option<&'static str>);

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => f.write_str("; `headwater info` lists the keys"),
        }
    }
}
