// Writes order/cpp.tfrecord for order.py with TensorFlow's C++ protobuf, whose maps have another order in each record.

#include <cstdint>
#include <fstream>
#include <string>

#include "tensorflow/core/example/example.pb.h"

static uint32_t masked_crc(const std::string& bytes) {
    uint32_t crc = ~0u;
    for (unsigned char byte : bytes) {
        crc ^= byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static std::string little(uint64_t value, int bytes) {
    std::string out;
    for (; bytes-- > 0; value >>= 8) out += char(value);
    return out;
}

int main(int, char** arguments) {
    std::ofstream out(arguments[1], std::ios::binary);
    for (int64_t row = 0; row < 100; row++) {
        tensorflow::Example example;
        auto& features = *example.mutable_features()->mutable_feature();
        for (int64_t column = 0; column < 12; column++) {
            if ((row * 7 + column * 5) % 10 < 3) continue;
            auto& feature = features[std::string(column * 2, 'n') + "_" + std::to_string(column)];
            for (int64_t at = 0; at < (column == 9 ? row % 4 : 1); at++) {
                int64_t value = (row + at) * 1000003 % (1 << 20) - column;
                if (column % 3 == 0) feature.mutable_int64_list()->add_value(value);
                if (column % 3 == 1) feature.mutable_float_list()->add_value(value / 4.0f);
                if (column % 3 == 2) feature.mutable_bytes_list()->add_value(std::to_string(value));
            }
        }
        std::string record;
        example.SerializeToString(&record);
        std::string length = little(record.size(), 8);
        out << length << little(masked_crc(length), 4) << record << little(masked_crc(record), 4);
    }
}
