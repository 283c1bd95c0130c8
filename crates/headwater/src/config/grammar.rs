//! The grammar of a settings string, with no knowledge of the settings.
//!
//! ```text
//! settings = [ item { "," item } [ "," ] ]
//! item     = word ":" ( word | "[" [ pair { "," pair } ] "]" )
//! pair     = word ":" word
//! ```
//!
//! White space is dropped wherever it stands, as PyTorch drops it. A trailing comma is allowed because PyTorch allows
//! it, and scripts that append settings leave one. Two items of one key are both returned: the later one holds.

use super::error::{ConfigError, Origin};

/// One `key:value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) key: String,
    pub(super) value: Value,
}

/// What stands after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Word(String),
    List(Vec<(String, String)>),
}

impl Value {
    /// The one word, where it is one.
    pub(super) fn word(&self) -> Option<&str> {
        match self {
            Value::Word(word) => Some(word),
            Value::List(_) => None,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Word(word) => f.write_str(word),
            Value::List(pairs) => {
                let pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
        }
    }
}

/// Reads all items of `text`.
pub(super) fn items(text: &str, origin: Origin) -> Result<Vec<Item>, ConfigError> {
    let mut reader = Reader { tokens: tokens(text), next: 0, end: text.chars().count() + 1, origin };
    let mut items = Vec::new();
    while !reader.at_end() {
        let key = reader.word("a key")?;
        reader.mark(':', "`:` and a value")?;
        let value = if reader.skip('[') {
            Value::List(reader.pairs()?)
        } else {
            Value::Word(reader.word("a value")?)
        };
        items.push(Item { key, value });
        if !reader.at_end() {
            reader.mark(',', "`,` and the next key")?;
        }
    }
    Ok(items)
}

enum Token {
    Mark(char),
    Word(String),
}

/// The tokens of `text`, each with the place (in characters, from 1) at which it starts.
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let mut tokens = Vec::new();
    let mut word: Option<(usize, String)> = None;
    for (place, character) in (1..).zip(text.chars()) {
        if matches!(character, ',' | ':' | '[' | ']') {
            tokens.extend(word.take().map(|(start, word)| (start, Token::Word(word))));
            tokens.push((place, Token::Mark(character)));
        } else if !character.is_ascii_whitespace() {
            word.get_or_insert_with(|| (place, String::new())).1.push(character);
        }
    }
    tokens.extend(word.map(|(start, word)| (start, Token::Word(word))));
    tokens
}

struct Reader {
    tokens: Vec<(usize, Token)>,
    next: usize,
    end: usize,
    origin: Origin,
}

impl Reader {
    fn at_end(&self) -> bool {
        self.next >= self.tokens.len()
    }

    /// Passes over `mark` where it comes next.
    fn skip(&mut self, mark: char) -> bool {
        let found = matches!(self.tokens.get(self.next), Some((_, Token::Mark(next))) if *next == mark);
        self.next += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char, expected: &'static str) -> Result<(), ConfigError> {
        if self.skip(mark) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn word(&mut self, expected: &'static str) -> Result<String, ConfigError> {
        match self.tokens.get(self.next) {
            Some((_, Token::Word(word))) => {
                self.next += 1;
                Ok(word.clone())
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// The pairs of a list whose opening bracket has been read, and its closing bracket.
    fn pairs(&mut self) -> Result<Vec<(String, String)>, ConfigError> {
        let mut pairs = Vec::new();
        while !self.skip(']') {
            if !pairs.is_empty() {
                self.mark(',', "`,` or `]`")?;
            }
            let name = self.word("a size or name")?;
            self.mark(':', "`:` and a value")?;
            pairs.push((name, self.word("a value")?));
        }
        Ok(pairs)
    }

    fn unexpected(&self, expected: &'static str) -> ConfigError {
        let (position, found) = match self.tokens.get(self.next) {
            None => (self.end, "the end".to_owned()),
            Some((place, Token::Mark(mark))) => (*place, format!("`{mark}`")),
            Some((place, Token::Word(word))) => (*place, format!("`{word}`")),
        };
        ConfigError::Malformed { position, expected, found, origin: self.origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(key: &str, value: &str) -> Item {
        Item { key: key.to_owned(), value: Value::Word(value.to_owned()) }
    }

    #[test]
    fn items_lists_spaces_and_a_trailing_comma_are_read() {
        let list = Value::List(vec![("256".into(), "1".into()), (">".into(), "4".into())]);
        let expected = vec![word("a", "1"), Item { key: "b".to_owned(), value: list }, word("c", "xy")];
        assert_eq!(items(" a : 1,\tb:[ 256:1, >:4 ] ,c: x y ,", Origin::Code), Ok(expected));
        assert_eq!(items("", Origin::Code), Ok(vec![]));
        assert_eq!(items("  ", Origin::Code), Ok(vec![]));
        assert_eq!(
            items("a:[]", Origin::Code),
            Ok(vec![Item { key: "a".to_owned(), value: Value::List(vec![]) }])
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (text, place, found) in [
            (",a:1", 1, "`,`"),
            ("a", 2, "the end"),
            ("a:", 3, "the end"),
            ("a:1 b:2", 6, "`:`"),
            ("a:1,,b:2", 5, "`,`"),
            ("a:[1", 5, "the end"),
            ("a:[1:2", 7, "the end"),
            ("a:[1:2 3:4]", 9, "`:`"),
            ("a:]", 3, "`]`"),
            ("a:1]", 4, "`]`"),
        ] {
            match items(text, Origin::Code) {
                Err(ConfigError::Malformed { position, found: was, .. }) => {
                    assert_eq!((position, was.as_str()), (place, found), "{text}");
                }
                other => panic!("{text} gave {other:?}"),
            }
        }
    }
}
