//! Where a record of CSV ends: at an end of line that is not within quotes.

use super::csv::CsvOptions;

/// The length of the first record with its end of line; of the last one also without. `None`: its end is still to come.
pub(crate) fn record_length(bytes: &[u8], options: &CsvOptions, is_last: bool) -> Option<usize> {
    let (mut is_quoted, mut begins, mut position) = (false, true, 0);
    while position < bytes.len() {
        let byte = bytes[position];
        if is_quoted {
            if options.escape == Some(byte) {
                position += 1;
            } else if byte == options.quote {
                // A doubled quote closes and opens again, which comes to the same.
                is_quoted = false;
            }
        } else if byte == b'\n' {
            return Some(position + 1);
        } else if byte == options.quote && (begins || position > 0 && bytes[position - 1] == options.quote) {
            is_quoted = true;
        }
        begins = byte == options.delimiter;
        position += 1;
    }
    (is_last && !bytes.is_empty()).then_some(bytes.len())
}
