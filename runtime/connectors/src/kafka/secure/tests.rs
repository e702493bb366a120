//! What is said to a broker, against the vectors of its standard.

use super::*;

/// RFC 7677, section 3.
#[test]
fn scram_speaks_as_its_standard_shows() {
    let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
    let mut scram = Scram::new(MessageDigest::sha256(), "user", "pencil".to_owned(), nonce);
    assert_eq!(scram.first, "n=user,r=rOprNGfwEbeRWgbNEkqO");
    let answer = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    let last = scram.next(answer.as_bytes()).unwrap().unwrap();
    let expected = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    assert_eq!(String::from_utf8(last).unwrap(), expected);
    assert!(scram.next(b"v=AAAA").is_err());
    assert_eq!(scram.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap(), None);
}
