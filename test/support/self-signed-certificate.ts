/**
 * A throw-away pair for servers in tests, valid for the name `localhost` only and trusted by nobody.
 * Stored because Node can't make a certificate and openssl may be absent.
 */
export const SELF_SIGNED_KEY = `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgDjoNnePd+8Z6HnR3
JeIw3XMuuhPYvdqUbigQSTN01+mhRANCAASKzGV1ZVE/BLXKRDxnKf8LP/pIIZAO
r0SHup6quaBm3nsWutIG9Br7oFMTuyQu2erzpXUzCNWRXczVJOl8RriO
-----END PRIVATE KEY-----
`;

export const SELF_SIGNED_CERTIFICATE = `-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUcaOg3qpGFqt7jhtNZGdh8jnXyoAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTIyNDIwMVoYDzIxMjYxMTA1
MjI0MjAxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASKzGV1ZVE/BLXKRDxnKf8LP/pIIZAOr0SHup6quaBm3nsWutIG9Br7
oFMTuyQu2erzpXUzCNWRXczVJOl8RriOo2kwZzAdBgNVHQ4EFgQUJXPDiRqe+PNq
vuiwf/ZXTMhoj4EwHwYDVR0jBBgwFoAUJXPDiRqe+PNqvuiwf/ZXTMhoj4EwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgXt+Bapbqt9ELclayBNZogvVXitGYXIBKkCaF+4lf4LACIQDpjyfcSJyl
nwIWas6H/+WWEkQrFgCdOWxTMtUTtQXgRw==
-----END CERTIFICATE-----
`;
