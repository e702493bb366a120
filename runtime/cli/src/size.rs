//! Sizes of memory as people and Kubernetes write them.

/// `1048576`, `512Mi`, `2G`, as bytes.
///
/// # Errors
/// When it is no whole number with one of these units, or nothing at all.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let at = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let factor: Option<u64> = match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!(
            "'{text}' is no size; expected a whole number, alone (bytes) or with k, M, G, Ki, Mi or Gi, such as 512Mi"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_are_read_with_their_units() {
        let read = ["17", "512Mi", "2G", "1Ki"].map(parse_size);
        assert_eq!(read, [Ok(17), Ok(512 << 20), Ok(2_000_000_000), Ok(1024)]);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for wrong in ["", "0", "Mi", "1.5Gi", "12 apples", "99999999999Gi", "-1"] {
            assert!(parse_size(wrong).is_err_and(|message| message.contains("512Mi")), "{wrong}");
        }
    }
}
