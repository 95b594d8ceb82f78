/* The fields of JSON objects, found without building anything.

   Only plain cases are decided here, and all others are left to a JSON library: what is not strict JSON, escapes in
   keys, surrogates, a wanted field that is there twice, a value that may not fit its field's form. */

#ifndef EMBEDLOG_JSON_FIELDS_H
#define EMBEDLOG_JSON_FIELDS_H

#include "fields.h"

#define JSON_DEEPEST 64
#define JSON_LONGEST_NUMBER 64

enum json_row { JSON_TAKEN, JSON_LEFT, JSON_NO_TEXT };
enum json_kind {
    JSON_BROKEN, JSON_STRING, JSON_ESCAPED, JSON_NUMBER, JSON_POWER, JSON_WIDE, JSON_MINUS_ZERO, JSON_LITERAL, JSON_NULL,
    JSON_NESTED
};
/* Forms of fields, see columns.py. */
enum json_form { JSON_TEXTS, JSON_NUMBERS, JSON_REALS, JSON_BOOLEANS, JSON_ANY };

/* A field to look for, and where its text is in each row: a size of -1 is a null, a start of ~n is n, with escapes. */
struct json_field {
    const uint8_t *name;
    int32_t size;
    int form;
    int whole; /* the most digits of JSON_NUMBERS before and after the point, and whether they may be negative */
    int fraction;
    int negative;
    int32_t *starts;
    int32_t *sizes;
    int64_t used;
};

struct json_text {
    const uint8_t *at;
    const uint8_t *end;
    uint64_t high; /* all bytes of strings, ORed: do any begin with a 1? */
    int64_t whole; /* of the last number: its digits before and after the point; 0 has none before it */
    int64_t fraction;
};

static inline void json_skip_blanks(struct json_text *text)
{
    const uint64_t blanks = (uint64_t)1 << ' ' | 1 << '\n' | 1 << '\r' | 1 << '\t';
    while (text->at < text->end && *text->at <= ' ' && blanks >> *text->at & 1)
        text->at++;
}

/* Where the first byte of eight is that ends a plain text: a quote, a backslash, or less than a space. 8: nowhere. */
static inline int json_plain(const uint8_t *at, uint64_t *bytes)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    memcpy(bytes, at, 8);
    uint64_t quote = *bytes ^ (ones * '"'), backslash = *bytes ^ (ones * '\\');
    uint64_t ends = (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((*bytes - ones * ' ') & ~*bytes))
        & tops;
    if (ends == 0)
        return 8;
#ifdef FIELDS_SWAP
    return __builtin_ctzll(ends) / 8; /* borrows make others of a higher byte only */
#else
    return 0;
#endif
}

/* Go over an escape, whose backslash is behind. */
static int json_escape(struct json_text *text)
{
    const uint8_t *at = text->at;
    if (at >= text->end)
        return 0;
    if (*at != 'u') {
        text->at++;
        return *at != 0 && strchr("\"\\/bfnrt", *at) != NULL;
    }
    if (text->end - at < 5 || ((at[1] | 0x20) == 'd' && at[2] >= '8') /* a surrogate may be alone */
        || memcmp(at + 1, "0000", 4) == 0)
        return 0;
    for (int i = 1; i <= 4; i++) {
        uint8_t letter = at[i] | 0x20;
        if (!((at[i] >= '0' && at[i] <= '9') || (letter >= 'a' && letter <= 'f')))
            return 0;
    }
    text->at += 5;
    return 1;
}

/* Go over a string, whose opening quote is behind; its closing quote is behind then. */
static inline enum json_kind json_string(struct json_text *text)
{
    enum json_kind kind = JSON_STRING;
    while (text->at < text->end) {
        if (text->end - text->at >= 8) {
            uint64_t bytes;
            int plain = json_plain(text->at, &bytes);
            if (plain == 8) {
                text->high |= bytes;
                text->at += 8;
                continue;
            }
#ifdef FIELDS_SWAP
            text->high |= bytes & (((uint64_t)1 << 8 * plain) - 1);
            text->at += plain;
#endif
        }
        uint8_t byte = *text->at++;
        if (byte == '"')
            return kind;
        if (byte < ' ')
            return JSON_BROKEN;
        text->high |= byte;
        if (byte == '\\') {
            kind = JSON_ESCAPED;
            if (!json_escape(text))
                return JSON_BROKEN;
        }
    }
    return JSON_BROKEN;
}

static inline int json_digits(struct json_text *text)
{
    const uint8_t *at = text->at;
    while (at < text->end && (uint8_t)(*at - '0') <= 9)
        at++;
    int any = at > text->at;
    text->at = at;
    return any;
}

static inline enum json_kind json_number(struct json_text *text)
{
    const uint8_t *from = text->at, *first;
    enum json_kind kind = JSON_NUMBER;
    if (*text->at == '-')
        text->at++;
    first = text->at;
    if (!json_digits(text) || (*first == '0' && text->at - first > 1))
        return JSON_BROKEN;
    text->whole = *first == '0' ? 0 : text->at - first;
    text->fraction = 0;
    if (*first == '0' && first > from)
        kind = JSON_MINUS_ZERO;
    if (text->at < text->end && *text->at == '.') {
        kind = JSON_NUMBER;
        first = ++text->at;
        if (!json_digits(text))
            return JSON_BROKEN;
        text->fraction = text->at - first;
    }
    if (text->at < text->end && (*text->at | 0x20) == 'e') {
        text->at++;
        if (text->at < text->end && (*text->at == '-' || *text->at == '+'))
            text->at++;
        first = text->at;
        if (!json_digits(text))
            return JSON_BROKEN;
        kind = text->at - first > 2 ? JSON_WIDE : JSON_POWER; /* may be infinite */
    }
    return text->at - from > JSON_LONGEST_NUMBER ? JSON_WIDE : kind;
}

static inline enum json_kind json_literal(struct json_text *text, const char *word, size_t size, enum json_kind kind)
{
    if ((size_t)(text->end - text->at) < size || memcmp(text->at, word, size) != 0)
        return JSON_BROKEN;
    text->at += size;
    return kind;
}

/* Go over a value. Its text is what is behind, with the quotes of a string. */
static enum json_kind json_value(struct json_text *text, int depth)
{
    uint8_t close;
    if (text->at >= text->end)
        return JSON_BROKEN;
    switch (*text->at) {
    case '"':
        text->at++;
        return json_string(text);
    case 't':
        return json_literal(text, "true", 4, JSON_LITERAL);
    case 'f':
        return json_literal(text, "false", 5, JSON_LITERAL);
    case 'n':
        return json_literal(text, "null", 4, JSON_NULL);
    case '{':
        close = '}';
        break;
    case '[':
        close = ']';
        break;
    default:
        return json_number(text);
    }
    if (depth >= JSON_DEEPEST)
        return JSON_BROKEN;
    text->at++;
    json_skip_blanks(text);
    if (text->at < text->end && *text->at == close) {
        text->at++;
        return JSON_NESTED;
    }
    for (;;) {
        if (close == '}') {
            if (text->at >= text->end || *text->at++ != '"' || json_string(text) == JSON_BROKEN)
                return JSON_BROKEN;
            json_skip_blanks(text);
            if (text->at >= text->end || *text->at++ != ':')
                return JSON_BROKEN;
            json_skip_blanks(text);
        }
        if (json_value(text, depth + 1) == JSON_BROKEN)
            return JSON_BROKEN;
        json_skip_blanks(text);
        if (text->at >= text->end)
            return JSON_BROKEN;
        if (*text->at == close) {
            text->at++;
            return JSON_NESTED;
        }
        if (*text->at++ != ',')
            return JSON_BROKEN;
        json_skip_blanks(text);
    }
}

static int json_is_utf8(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        uint8_t first = *at++;
        if (first < 0x80)
            continue;
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - at < more)
            return 0;
        uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80; /* of the second byte: shortest forms, */
        uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF; /* no surrogates, up to U+10FFFF */
        if (*at < low || *at > high)
            return 0;
        for (int i = 1; i < more; i++)
            if ((at[i] & 0xC0) != 0x80)
                return 0;
        at += more;
    }
    return 1;
}

/* May a field take a value of this kind, the last of the text, as it is written? */
static inline int json_takes(const struct json_field *field, enum json_kind kind, const struct json_text *text, int negative)
{
    switch (field->form) {
    case JSON_TEXTS:
        return kind != JSON_NESTED && kind != JSON_MINUS_ZERO;
    case JSON_NUMBERS:
        return kind == JSON_NUMBER && text->whole <= field->whole && text->fraction <= field->fraction
            && (field->negative || !negative);
    case JSON_REALS:
        return kind == JSON_NUMBER || kind == JSON_POWER;
    case JSON_BOOLEANS:
        return kind == JSON_LITERAL;
    default:
        return 1;
    }
}

/* Find the fields in the object from `at` to `end`. `from` is where all rows begin. */
static enum json_row json_find(
    const uint8_t *from, const uint8_t *at, const uint8_t *end, struct json_field *fields, int count, int64_t row)
{
    struct json_text text = {at, end, 0, 0, 0};
    int next = 0; /* fields usually come in one order */
    json_skip_blanks(&text);
    if (text.at >= end || *text.at++ != '{')
        return JSON_LEFT;
    json_skip_blanks(&text);
    if (text.at < end && *text.at == '}') {
        text.at++;
    } else {
        for (;;) {
            const uint8_t *name = text.at + 1;
            if (text.at >= end || *text.at++ != '"' || json_string(&text) != JSON_STRING)
                return JSON_LEFT;
            int64_t size = text.at - 1 - name;
            json_skip_blanks(&text);
            if (text.at >= end || *text.at++ != ':')
                return JSON_LEFT;
            json_skip_blanks(&text);
            const uint8_t *value = text.at;
            enum json_kind kind = json_value(&text, 0);
            if (kind == JSON_BROKEN)
                return JSON_LEFT;
            for (int tried = 0; tried < count; tried++) {
                struct json_field *field = fields + next;
                next = next + 1 == count ? 0 : next + 1;
                if (field->size != size || memcmp(field->name, name, size) != 0)
                    continue;
                if (field->sizes[row] != -1
                    || (kind != JSON_NULL && !json_takes(field, kind, &text, *value == '-')))
                    return JSON_LEFT;
                int quote = (kind == JSON_STRING || kind == JSON_ESCAPED) && field->form != JSON_ANY;
                field->starts[row] = (int32_t)(value + quote - from);
                if (kind == JSON_ESCAPED && quote)
                    field->starts[row] = ~field->starts[row];
                /* -2, which becomes a null: the field was there */
                field->sizes[row] = kind == JSON_NULL ? -2 : (int32_t)(text.at - value - 2 * quote);
                break;
            }
            json_skip_blanks(&text);
            if (text.at >= end)
                return JSON_LEFT;
            if (*text.at == '}') {
                text.at++;
                break;
            }
            if (*text.at++ != ',')
                return JSON_LEFT;
            json_skip_blanks(&text);
        }
    }
    json_skip_blanks(&text);
    if (text.at != end)
        return JSON_LEFT;
    return text.high & 0x8080808080808080u && !json_is_utf8(at, end) ? JSON_NO_TEXT : JSON_TAKEN;
}

/* Find the fields in so many rows, and note in the bits of `rows_left`, which are 0, which rows are left. Returns how
   many are. `valid` may be NULL. */
static int64_t json_find_all(
    const uint8_t *data, const int32_t *ends, const uint8_t *valid, int64_t rows, struct json_field *fields, int count,
    uint8_t *rows_left)
{
    int64_t left_count = 0;
    for (int64_t row = 0; row < rows; row++) {
        enum json_row outcome = JSON_NO_TEXT;
        for (int i = 0; i < count; i++)
            fields[i].sizes[row] = -1;
        if (valid == NULL || valid[row >> 3] >> (row & 7) & 1) {
            const uint8_t *at = data + ends[row], *end = data + ends[row + 1];
            outcome = json_find(data, at, end, fields, count, row);
            if (outcome == JSON_LEFT && json_is_utf8(at, end)) {
                rows_left[row >> 3] |= 1 << (row & 7);
                left_count++;
            }
        }
        for (int i = 0; i < count; i++) {
            if (outcome != JSON_TAKEN || fields[i].sizes[row] < 0)
                fields[i].sizes[row] = -1;
            else
                fields[i].used += fields[i].sizes[row];
        }
    }
    return left_count;
}

static inline int json_hexadecimal(uint8_t digit)
{
    return digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
}

/* Write a string of right escapes without them. Returns its size, which is smaller. */
static int32_t json_unescape(const uint8_t *at, int32_t size, uint8_t *to)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const uint8_t *end = at + size;
    uint8_t *out = to;
    while (at < end) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        at += 2;
        if (at[-1] != 'u') {
            *out++ = (uint8_t)meant[strchr(escapes, at[-1]) - escapes];
            continue;
        }
        int code = 0;
        for (int i = 0; i < 4; i++)
            code = code << 4 | json_hexadecimal(*at++);
        if (code < 0x80) {
            *out++ = (uint8_t)code;
            continue;
        }
        if (code >= 0x800) {
            *out++ = (uint8_t)(0xE0 | code >> 12);
            *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        } else {
            *out++ = (uint8_t)(0xC0 | code >> 6);
        }
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return (int32_t)(out - to);
}

/* Copy a field's texts to where `size` bytes are, as an Arrow column; `ends` may be where its sizes are, one further.
   Returns how many are null. */
static int64_t json_copy(
    const uint8_t *data, const struct json_field *field, int64_t rows, uint8_t *valid, int32_t *ends, uint8_t *to)
{
    int64_t nulls = 0;
    int32_t used = 0;
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        int32_t size = field->sizes[row];
        if (size < 0) {
            nulls++;
        } else {
            valid[row >> 3] |= 1 << (row & 7);
            if (field->starts[row] < 0)
                size = json_unescape(data + ~field->starts[row], size, to + used);
            else
                memcpy(to + used, data + field->starts[row], size);
            used += size;
        }
        ends[row + 1] = used;
    }
    return nulls;
}

#endif
