//! Text of a trace put into a page: a label may hold `</script>`, quotes, or worse.

/// Text as HTML content or as a quoted attribute.
pub(super) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML has no way to write NUL.
            '\0' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

/// JSON inside a script element. `<` occurs in strings only, where it may be written as an escape; without it neither
/// `</script>` nor `<!--` can end or change the element.
pub(super) fn json_in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(html("<b a='1' c=\"2\">&"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
    }

    #[test]
    fn a_script_element_cannot_be_ended_and_reads_back_the_same() {
        let hostile = "</script><!--<script>\u{2028}\\\"";
        let json = json_in_script(&serde_json::to_string(hostile).unwrap());
        assert!(!json.contains('<'));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }
}
